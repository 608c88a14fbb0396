// Functions that old drivers lack.

#include <fcntl.h>
#include <unistd.h>

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

// Opens a file with the bytes of a range, at the range's place. It stands for a dma-buf descriptor:
// lseek(fd, 0, SEEK_CUR) tells the place, from which the bytes can be mapped.
int dma_buf(Memory& memory, const Allocation& own, Address address) {
  const AddressSpace& space = memory.space(own.gpu);
  const bool is_mapped = own.created != 0;
  const Address begin = is_mapped ? own.address : space.base;
  const std::string path = "/proc/self/fd/" + std::to_string(is_mapped ? own.fd : space.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) lseek(fd, static_cast<off_t>(address - begin), SEEK_SET);
  return fd;
}

}  // namespace

extern "C" {

Result cuFlushGPUDirectRDMAWrites(int target, int scope) {
  return in_call("cuFlushGPUDirectRDMAWrites", Needs::context, [&](Call& call) -> Result {
    if (target != kFlushCurrentDevice) return kInvalidValue;
    if (scope != kFlushToOwner && scope != kFlushToAllDevices) return kInvalidValue;
    Driver& all = call.driver();
    const int gpu = call.context().gpu;
    if ((all.facts(gpu).attribute(DeviceAttribute::gpudirect_flush_options) & 1) == 0) {
      return kNotSupported;
    }
    all.log.count("flushes");
    for (const auto& told : all.on_flush) told.function(gpu, told.context);
    return kSuccess;
  });
}

Result cuDeviceGetUuid_v2(Uuid* uuid, DeviceNumber device) {
  return in_call("cuDeviceGetUuid_v2", Needs::init, [&](Call& call) -> Result {
    if (!call.driver().is_gpu(device)) return kInvalidDevice;
    *uuid = call.driver().facts(device).uuid_bytes();
    return kSuccess;
  });
}

Result cuMemGetHandleForAddressRange(void* handle, Address address, std::size_t bytes, int type,
                                     unsigned long long flags) {
  return in_call("cuMemGetHandleForAddressRange", Needs::context, [&](Call& call) -> Result {
    Driver& all = call.driver();
    if (all.facts(call.context().gpu).attribute(DeviceAttribute::dma_buf) == 0) {
      return kNotSupported;
    }
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (type != kHandleTypeDmaBuf || flags != 0 || bytes == 0) return kInvalidValue;
    if (address % page != 0 || bytes % page != 0) return kInvalidValue;
    const Allocation* const own = all.memory.find_block(address, bytes);
    if (!own || own->is_imported || own->is_managed) return kInvalidValue;
    const int fd = dma_buf(all.memory, *own, address);
    if (fd < 0) return kOutOfMemory;
    *static_cast<int*>(handle) = fd;
    all.log.count("dma-buf descriptors");
    return kSuccess;
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
