// Makes GPUs ready for sums: loads the kernels, allocates memory for operands that lie elsewhere,
// and measures from which size on sums are worth their kernels.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "cuda/gpu_modules.h"
#include "memory/piece.h"

namespace rdmacoll::cuda {

class GpuSums {
 public:
  enum class State : uint8_t { preparing, ready, refused };
  // Operands of one job share it. Longer jobs are done in parts.
  static constexpr std::size_t kScratchBytes = std::size_t{16} << 20;

  // `thread` outlives all calls.
  GpuSums(std::shared_ptr<Gpus> gpus, std::shared_ptr<GpuModules> modules, DriverThread& thread)
      : gpus_(std::move(gpus)), modules_(std::move(modules)), thread_(thread) {}

  // The first call for a GPU lets the thread begin. Only the holder of the baton calls it.
  State prepare(Gpu gpu);
  // Lets the thread run a task for a GPU, which the next two functions count. The task shares the
  // ownership of all that it uses. Fails if no thread can be started. Only the holder of the baton
  // calls it.
  Status run(std::function<void()> task);
  // How many such tasks, and preparations of GPUs, have ended. It may be read by any thread.
  uint64_t version() const { return version_->load(std::memory_order_acquire); }
  // How many have not. For any thread.
  uint64_t preparing() const { return begun_.load(std::memory_order_relaxed) - version(); }

  // The reason why a GPU was refused.
  const Status& refusal(Gpu gpu) const;
  // Both need a GPU that is ready. The memory is for work on one stream. Other GPUs have none.
  Piece scratch(Gpu gpu) const;
  uint64_t bytes_min(Gpu gpu) const;

 private:
  struct Entry;

  const std::shared_ptr<Entry>& entry(Gpu gpu) const {
    return entries_[static_cast<std::size_t>(gpu)];
  }

  const std::shared_ptr<Gpus> gpus_;
  const std::shared_ptr<GpuModules> modules_;
  DriverThread& thread_;
  const std::shared_ptr<std::atomic<uint64_t>> version_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  std::atomic<uint64_t> begun_{0};
  std::array<std::shared_ptr<Entry>, Gpus::kGpusMax> entries_;
};

}  // namespace rdmacoll::cuda
