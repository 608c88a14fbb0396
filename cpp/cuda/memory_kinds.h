// The kind of memory at an address that a caller gives.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/log.h"
#include "cuda/gpus.h"
#include "memory/memory_kind.h"

namespace rdmacoll::cuda {

// All but the kind is for device memory.
struct PointerFacts {
  MemoryKind kind = MemoryKind::host;
  Gpu gpu = kHost;
  uint64_t buffer_id = 0;  // memory that was freed and comes again has another one
  Address base = 0;        // the allocation around the address
  std::size_t bytes = 0;   // its size
};

class MemoryKinds {
 public:
  MemoryKinds(Gpus& gpus, Log log) : gpus_(gpus), log_(log) {}

  // Finds the facts of an address. Device memory makes its GPU a used one. No other memory makes a
  // context. Managed memory counts as host memory, if the GPU shares it with the processor while
  // kernels run, and else as device memory. This is logged once. Any thread may call it.
  Status look(const void* memory, PointerFacts& facts);

 private:
  Gpus& gpus_;
  const Log log_;
  std::atomic<bool> has_logged_managed_{false};
};

}  // namespace rdmacoll::cuda
