// Facts about GPU memory that NICs need, from the CUDA driver.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "cuda/direct_ways.h"
#include "cuda/gpus.h"
#include "memory/gpu_memory_facts.h"

namespace rdmacoll::cuda {

class GpuMemory final : public GpuMemoryFacts {
 public:
  // `ways`: a GPU that is missing there has no direct way. `said`: warnings that have been logged.
  GpuMemory(std::shared_ptr<Gpus> gpus, std::vector<DirectWay> ways,
            std::vector<std::string> said = {})
      : gpus_(std::move(gpus)), ways_(std::move(ways)), said_(std::move(said)) {}

  // Call it when a GPU is used, from any thread. Logs the warning of a lost direct way once for
  // each GPU, unless it was said before. An error if the setting forces a way that the machine
  // lacks.
  Status admit(Gpu gpu, const Log& log);
  // The ways of the GPUs that are used: "cuda:0 send staged, receive direct".
  std::string summary() const;

  GpuWays ways(Gpu gpu) const override;
  std::string text(Gpu gpu) const override { return gpus_->facts(gpu).text(); }
  bool find(const std::byte* address, GpuAllocation& allocation) override;
  Status dma_buf(Gpu gpu, const Piece& pages, Fd& descriptor) override;
  Status set_sync_memops(const GpuAllocation& allocation) override;
  uint64_t registrable_bytes(Gpu gpu) override;
  WriteFlush write_flush(Gpu gpu) override;
  Status flush(Gpu gpu) override;

 private:
  const DirectWay* way(Gpu gpu) const { return find_way(ways_, gpus_->facts(gpu)); }

  const std::shared_ptr<Gpus> gpus_;
  const std::vector<DirectWay> ways_;
  const std::vector<std::string> said_;
  std::array<std::atomic<bool>, Gpus::kGpusMax> is_warned_{};
};

}  // namespace rdmacoll::cuda
