// The driver's functions that allocate and register memory.

#include <sys/mman.h>

#include <string>

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"
#include "cuda_sim/ipc.h"

namespace rdmacoll::cuda_sim {
namespace {

// The memory of a call goes away: queued work must not need it.
void check_unused(Call& call, Address address, std::size_t bytes) {
  if (call.driver().scheduler.touches({address, bytes})) {
    call.misuse("the memory is in use by work that is queued.");
  }
}

Result allocate(Call& call, Address* address, std::size_t bytes, bool is_pooled) {
  if (bytes == 0) return kInvalidValue;
  const Allocation* const made =
      call.driver().memory.allocate(call.context().gpu, bytes, is_pooled);
  if (!made) return kOutOfMemory;
  *address = made->address;
  return kSuccess;
}

// Finds an allocation that begins at the address and can be freed, or returns null.
Allocation* allocation_at(Call& call, Address address) {
  Allocation* const found = call.driver().memory.find_base(address);
  return found && !found->is_imported && found->created == 0 ? found : nullptr;
}

Result unpin(Call& call, const void* memory, bool is_registered) {
  call.wait_for_kernels();
  Memory& all = call.driver().memory;
  const Pinned* const found = all.find_pinned(address_of(memory));
  const Result refusal = is_registered ? kMemoryNotRegistered : kInvalidValue;
  if (!found || found->address != address_of(memory) || found->is_registered != is_registered) {
    return refusal;
  }
  check_unused(call, found->address, found->bytes);
  const std::size_t bytes = found->bytes;
  all.unpin(found->address);
  if (!is_registered) munmap(const_cast<void*>(memory), bytes);
  return kSuccess;
}

}  // namespace

extern "C" {

Result cuMemAlloc_v2(Address* address, std::size_t bytes) {
  return in_call("cuMemAlloc_v2", Needs::context,
                 [&](Call& call) -> Result { return allocate(call, address, bytes, false); });
}

Result cuMemFree_v2(Address address) {
  if (address == 0) return kSuccess;
  return in_call("cuMemFree_v2", Needs::context, [&](Call& call) -> Result {
    call.wait_for_kernels();
    Allocation* const own = allocation_at(call, address);
    if (own == nullptr) return kInvalidValue;
    check_unused(call, own->address, own->bytes);
    if (const pid_t opener = opener_of(call.driver(), *own); opener != 0) {
      call.misuse("process " + std::to_string(opener) + " has the memory open by CUDA IPC.");
    }
    forget_export(call.driver(), *own);
    call.driver().memory.release(address);
    return kSuccess;
  });
}

Result cuMemAllocManaged(Address* address, std::size_t bytes, unsigned flags) {
  return in_call("cuMemAllocManaged", Needs::context, [&](Call& call) -> Result {
    if (bytes == 0 || flags < 1 || flags > 2) return kInvalidValue;
    *address = call.driver().memory.allocate_managed(call.context().gpu, bytes)->address;
    return kSuccess;
  });
}

Result cuMemAllocAsync(Address* address, std::size_t bytes, StreamHandle stream) {
  return in_call("cuMemAllocAsync", Needs::context, [&](Call& call) -> Result {
    if (!call.stream(stream)) return kInvalidHandle;
    if (call.driver().facts(call.context().gpu).attribute(DeviceAttribute::memory_pools) == 0) {
      return kNotSupported;
    }
    return allocate(call, address, bytes, true);
  });
}

Result cuMemFreeAsync(Address address, StreamHandle stream) {
  return in_call("cuMemFreeAsync", Needs::context, [&](Call& call) -> Result {
    if (allocation_at(call, address) == nullptr) return kInvalidValue;
    Stream* const own = call.stream(stream);
    if (!own) return kInvalidHandle;
    Driver& all = call.driver();
    return call.submit(*own, {.run = [&all, address] {
      all.memory.release(address);
      return true;
    }});
  });
}

Result cuMemGetAddressRange_v2(Address* base, std::size_t* bytes, Address address) {
  return in_call("cuMemGetAddressRange_v2", Needs::context, [&](Call& call) -> Result {
    const Allocation* const found = call.driver().memory.find(address);
    if (!found) return kNotFound;
    if (base) *base = found->address;
    if (bytes) *bytes = found->bytes;
    return kSuccess;
  });
}

Result cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* bytes) {
  return in_call("cuMemGetInfo_v2", Needs::context, [&](Call& call) -> Result {
    Memory& memory = call.driver().memory;
    *bytes = memory.space(call.context().gpu).bytes;
    *free_bytes = *bytes - memory.used(call.context().gpu);
    return kSuccess;
  });
}

Result cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  return in_call("cuMemHostAlloc", Needs::context, [&](Call& call) -> Result {
    if (bytes == 0 || flags > 7) return kInvalidValue;
    void* const made =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return kOutOfMemory;
    call.driver().memory.pin(
        {.address = address_of(made), .bytes = bytes, .gpu = call.context().gpu, .flags = flags});
    *memory = made;
    return kSuccess;
  });
}

Result cuMemFreeHost(void* memory) {
  return in_call("cuMemFreeHost", Needs::context,
                 [&](Call& call) -> Result { return unpin(call, memory, false); });
}

Result cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  return in_call("cuMemHostRegister_v2", Needs::context, [&](Call& call) -> Result {
    Driver& all = call.driver();
    if (!memory || bytes == 0 || flags > 15) return kInvalidValue;
    if (all.memory.is_device_address(address_of(memory))) return kInvalidValue;
    if (all.facts(call.context().gpu).attribute(DeviceAttribute::host_register) == 0) {
      return kNotSupported;
    }
    const bool is_new = all.memory.pin({.address = address_of(memory),
                                        .bytes = bytes,
                                        .gpu = call.context().gpu,
                                        .flags = flags,
                                        .is_registered = true}) != nullptr;
    return is_new ? kSuccess : kMemoryAlreadyRegistered;
  });
}

Result cuMemHostUnregister(void* memory) {
  return in_call("cuMemHostUnregister", Needs::context,
                 [&](Call& call) -> Result { return unpin(call, memory, true); });
}

Result cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned flags) {
  return in_call("cuMemHostGetDevicePointer_v2", Needs::context, [&](Call& call) -> Result {
    if (flags != 0 || !call.driver().memory.find_pinned(address_of(memory))) return kInvalidValue;
    *address = address_of(memory);
    return kSuccess;
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
