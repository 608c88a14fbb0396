// Virtual memory management: addresses are reserved, memory is created, and mapped at addresses. An
// address can have other memory later, with another buffer id.

#include <sys/mman.h>
#include <unistd.h>

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

// CUmemAllocationProp
struct MemoryProperties {
  int type;  // 1: pinned on a GPU
  int handle_types;
  int location_type;  // 1: a GPU
  int location;
  void* windows;
  unsigned char compression;
  unsigned char is_gpudirect_capable;
  unsigned short usage;
  unsigned char reserved[4];
};

bool is_whole(std::size_t bytes) { return bytes != 0 && bytes % kGranularity == 0; }

// Runs the body if the current context's GPU has virtual memory management.
template <class Body>
Result with_vmm(const char* name, Body&& body) {
  return in_call(name, Needs::context, [&](Call& call) -> Result {
    const GpuFacts& facts = call.driver().facts(call.context().gpu);
    if (facts.attribute(DeviceAttribute::virtual_memory) == 0) return kNotSupported;
    return body(call, call.driver());
  });
}

void release_if_unused(Driver& all, unsigned long long handle) {
  const auto found = all.created.find(handle);
  if (found->second.is_mapped || !found->second.is_released) return;
  munmap(found->second.store, found->second.bytes);
  close(found->second.fd);
  all.created.erase(found);
}

}  // namespace

extern "C" {

RC_SIM_EXPORT Result cuMemGetAllocationGranularity(std::size_t* bytes, const MemoryProperties*,
                                                   int) {
  return with_vmm("cuMemGetAllocationGranularity", [&](Call&, Driver&) -> Result {
    *bytes = kGranularity;
    return kSuccess;
  });
}

RC_SIM_EXPORT Result cuMemAddressReserve(Address* address, std::size_t bytes, std::size_t, Address,
                                         unsigned long long) {
  return with_vmm("cuMemAddressReserve", [&](Call&, Driver& all) -> Result {
    if (!is_whole(bytes)) return kInvalidValue;
    *address = all.memory.reserve(bytes);
    return kSuccess;
  });
}

RC_SIM_EXPORT Result cuMemAddressFree(Address address, std::size_t bytes) {
  return with_vmm("cuMemAddressFree", [&](Call&, Driver& all) -> Result {
    if (all.memory.find(address)) return kInvalidValue;
    return all.memory.unreserve(address, bytes) ? kSuccess : kInvalidValue;
  });
}

RC_SIM_EXPORT Result cuMemCreate(unsigned long long* handle, std::size_t bytes,
                                 const MemoryProperties* properties, unsigned long long) {
  return with_vmm("cuMemCreate", [&](Call&, Driver& all) -> Result {
    if (!is_whole(bytes) || properties->type != 1 || properties->location_type != 1) {
      return kInvalidValue;
    }
    if (!all.is_gpu(properties->location)) return kInvalidDevice;
    CreatedMemory made = {.gpu = properties->location, .bytes = bytes};
    made.is_gpudirect_capable = properties->is_gpudirect_capable != 0;
    made.fd = memfd_create("cuda_sim-created", MFD_CLOEXEC);
    if (made.fd < 0 || ftruncate(made.fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
    void* const store =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, made.fd, 0);
    if (store == MAP_FAILED) return kOutOfMemory;
    made.store = static_cast<std::byte*>(store);
    *handle = reinterpret_cast<std::uintptr_t>(all.new_handle<void*>());
    all.created[*handle] = made;
    return kSuccess;
  });
}

RC_SIM_EXPORT Result cuMemRelease(unsigned long long handle) {
  return with_vmm("cuMemRelease", [&](Call&, Driver& all) -> Result {
    const auto found = all.created.find(handle);
    if (found == all.created.end() || found->second.is_released) return kInvalidValue;
    found->second.is_released = true;
    release_if_unused(all, handle);
    return kSuccess;
  });
}

RC_SIM_EXPORT Result cuMemMap(Address address, std::size_t bytes, std::size_t offset,
                              unsigned long long handle, unsigned long long) {
  return with_vmm("cuMemMap", [&](Call&, Driver& all) -> Result {
    const auto found = all.created.find(handle);
    if (found == all.created.end() || found->second.is_released || found->second.is_mapped) {
      return kInvalidValue;
    }
    if (offset != 0 || bytes != found->second.bytes) return kInvalidValue;
    if (!all.memory.is_reserved(address, bytes) || all.memory.find(address)) return kInvalidValue;
    all.memory.map({.address = address,
                    .bytes = bytes,
                    .taken = bytes,
                    .gpu = found->second.gpu,
                    .owner = found->second.gpu,
                    .store = found->second.store,
                    .created = handle,
                    .fd = found->second.fd,
                    .is_gpudirect_capable = found->second.is_gpudirect_capable});
    found->second.is_mapped = true;
    return kSuccess;
  });
}

// The fake driver gives access at once.
RC_SIM_EXPORT Result cuMemSetAccess(Address address, std::size_t, const void*, std::size_t) {
  return with_vmm("cuMemSetAccess", [&](Call&, Driver& all) -> Result {
    return all.memory.find(address) ? kSuccess : kInvalidValue;
  });
}

RC_SIM_EXPORT Result cuMemUnmap(Address address, std::size_t bytes) {
  return with_vmm("cuMemUnmap", [&](Call& call, Driver& all) -> Result {
    const Allocation* const own = all.memory.find_base(address);
    if (!own || own->created == 0 || own->bytes != bytes) return kInvalidValue;
    if (all.scheduler.touches({address, bytes})) {
      call.misuse("the memory is in use by work that is queued.");
    }
    const unsigned long long handle = own->created;
    all.memory.release(address);
    all.created.at(handle).is_mapped = false;
    release_if_unused(all, handle);
    return kSuccess;
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
