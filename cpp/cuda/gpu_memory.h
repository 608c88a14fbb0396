// Facts about GPU memory that NICs need, from the CUDA driver.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/gpus.h"
#include "memory/gpu_memory_facts.h"

namespace rdmacoll::cuda {

// `has_call`: the driver has cuFlushGPUDirectRDMAWrites.
WriteFlush write_flush_of(const GpuFacts& facts, bool has_call);

class GpuMemory final : public GpuMemoryFacts {
 public:
  // Returns the bytes of BAR1 of the GPU with this UUID that registrations may take, or 0.
  using Bar1Of = std::function<uint64_t(const std::string& uuid)>;

  GpuMemory(Gpus& gpus, Bar1Of bar1_of) : gpus_(gpus), bar1_of_(std::move(bar1_of)) {}

  bool find(const std::byte* address, GpuAllocation& allocation) override;
  Status dma_buf(Gpu gpu, const Piece& pages, Fd& descriptor) override;
  Status set_sync_memops(const GpuAllocation& allocation) override;
  uint64_t registrable_bytes(Gpu gpu) override;
  WriteFlush write_flush(Gpu gpu) override;
  Status flush(Gpu gpu) override;

 private:
  Gpus& gpus_;
  const Bar1Of bar1_of_;
  std::vector<uint64_t> bar1_;  // by GPU, as far as known
};

}  // namespace rdmacoll::cuda
