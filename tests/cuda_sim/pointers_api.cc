// The driver's functions that tell of a pointer.

#include <cstring>

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

template <class Value>
Result give(void* to, Value value) {
  std::memcpy(to, &value, sizeof value);
  return kSuccess;
}

// An attribute of memory that CUDA knows.
Result tell_allocation(Driver& all, const Allocation& own, PointerAttribute which, Address address,
                       void* value) {
  const GpuFacts& facts = all.facts(own.gpu);
  const bool is_plain = !own.is_managed && !own.is_pooled && own.created == 0;
  switch (which) {
    case PointerAttribute::context:
      return own.is_pooled ? give<ContextHandle>(value, nullptr)
                           : give(value, all.contexts[own.gpu]->handle());
    case PointerAttribute::memory_type:
      return give(value, static_cast<unsigned>(MemoryType::device));
    case PointerAttribute::device_pointer:
      return give(value, address);
    case PointerAttribute::host_pointer:
      return own.is_managed ? give(value, address) : kInvalidValue;
    case PointerAttribute::sync_memops:
      return give<unsigned>(value, own.has_sync_memops);
    case PointerAttribute::buffer_id:
      return give<unsigned long long>(value, own.id);
    case PointerAttribute::is_managed:
      return give<unsigned>(value, own.is_managed);
    case PointerAttribute::device_ordinal:
      return give<int>(value, own.gpu);
    case PointerAttribute::is_legacy_cuda_ipc_capable:
      return give<unsigned>(value, is_plain && !own.is_imported && facts.has_ipc);
    case PointerAttribute::range_start:
      return give(value, own.address);
    case PointerAttribute::range_size:
      return give(value, own.bytes);
    case PointerAttribute::mapped:
      return give<unsigned>(value, 1);
    case PointerAttribute::allowed_handle_types:
      return give<unsigned long long>(value, 0);
    case PointerAttribute::is_gpu_direct_rdma_capable:
      return give<unsigned>(value, (is_plain || own.created != 0) && own.is_gpudirect_capable &&
                                       facts.attribute(DeviceAttribute::gpudirect_rdma) != 0);
    case PointerAttribute::mempool_handle:
      return give<std::uintptr_t>(value, own.is_pooled ? 1 : 0);
  }
  return kInvalidValue;
}

Result tell_pinned(Driver& all, const Pinned& own, PointerAttribute which, Address address,
                   void* value) {
  switch (which) {
    case PointerAttribute::context:
      return give(value, all.contexts[own.gpu]->handle());
    case PointerAttribute::memory_type:
      return give(value, static_cast<unsigned>(MemoryType::host));
    case PointerAttribute::device_pointer:
    case PointerAttribute::host_pointer:
      return give(value, address);
    case PointerAttribute::buffer_id:
      return give<unsigned long long>(value, own.id);
    case PointerAttribute::device_ordinal:
      return give<int>(value, own.gpu);
    case PointerAttribute::range_start:
      return give(value, own.address);
    case PointerAttribute::range_size:
      return give(value, own.bytes);
    case PointerAttribute::mapped:
      return give<unsigned>(value, 1);
    case PointerAttribute::sync_memops:
    case PointerAttribute::is_managed:
    case PointerAttribute::is_legacy_cuda_ipc_capable:
    case PointerAttribute::is_gpu_direct_rdma_capable:
      return give<unsigned>(value, 0);
    case PointerAttribute::allowed_handle_types:
    case PointerAttribute::mempool_handle:
      return give<unsigned long long>(value, 0);
  }
  return kInvalidValue;
}

// Bytes that the driver writes for an attribute, or 0 for an unknown one.
std::size_t bytes_of(int attribute) {
  switch (static_cast<PointerAttribute>(attribute)) {
    case PointerAttribute::memory_type:
    case PointerAttribute::sync_memops:
    case PointerAttribute::is_managed:
    case PointerAttribute::device_ordinal:
    case PointerAttribute::is_legacy_cuda_ipc_capable:
    case PointerAttribute::mapped:
    case PointerAttribute::is_gpu_direct_rdma_capable:
      return 4;
    case PointerAttribute::context:
    case PointerAttribute::device_pointer:
    case PointerAttribute::host_pointer:
    case PointerAttribute::buffer_id:
    case PointerAttribute::range_start:
    case PointerAttribute::range_size:
    case PointerAttribute::allowed_handle_types:
    case PointerAttribute::mempool_handle:
      return 8;
  }
  return 0;
}

Result tell(Driver& all, int attribute, Address address, void* value) {
  const auto which = static_cast<PointerAttribute>(attribute);
  if (const Allocation* found = all.memory.find(address)) {
    return tell_allocation(all, *found, which, address, value);
  }
  if (const Pinned* found = all.memory.find_pinned(address)) {
    return tell_pinned(all, *found, which, address, value);
  }
  return kInvalidValue;
}

}  // namespace

extern "C" {

Result cuPointerGetAttribute(void* value, int attribute, Address address) {
  return in_call("cuPointerGetAttribute", Needs::init, [&](Call& call) -> Result {
    return tell(call.driver(), attribute, address, value);
  });
}

// Gives zeros for memory that CUDA does not know, and for attributes that the memory has not.
Result cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                              Address address) {
  return in_call("cuPointerGetAttributes", Needs::init, [&](Call& call) -> Result {
    for (unsigned i = 0; i < count; ++i) {
      const std::size_t bytes = bytes_of(attributes[i]);
      if (bytes == 0) return kInvalidValue;
      if (tell(call.driver(), attributes[i], address, values[i]) == kSuccess) continue;
      std::memset(values[i], 0, bytes);
      const auto which = static_cast<PointerAttribute>(attributes[i]);
      if (which == PointerAttribute::device_ordinal) give<int>(values[i], -2);
    }
    return kSuccess;
  });
}

Result cuPointerSetAttribute(const void* value, int attribute, Address address) {
  return in_call("cuPointerSetAttribute", Needs::init, [&](Call& call) -> Result {
    Allocation* const found = call.driver().memory.find(address);
    if (!found || attribute != static_cast<int>(PointerAttribute::sync_memops)) {
      return kInvalidValue;
    }
    unsigned wanted = 0;
    std::memcpy(&wanted, value, sizeof wanted);
    found->has_sync_memops = wanted != 0;
    return kSuccess;
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
