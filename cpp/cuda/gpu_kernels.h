// Launches of the device kernels on one GPU.
#pragma once

#include <cstddef>
#include <optional>

#include "cuda/gpu_modules.h"
#include "cuda/gpus.h"
#include "cuda/kernel_library.h"
#include "cuda/pinned_pool.h"
#include "memory/pool.h"

namespace rdmacoll::cuda {

// The rows of a launch, in memory that the GPU reads until the launch has ended.
class LaunchTable {
 public:
  LaunchTable() = default;
  ~LaunchTable() { resize(nullptr, 0); }
  LaunchTable(const LaunchTable&) = delete;
  LaunchTable& operator=(const LaunchTable&) = delete;

  // Keeps memory that is large enough already. False: the pool has none.
  bool reserve(MemoryPool& pool, std::size_t bytes) {
    return bytes <= bytes_ || resize(&pool, bytes);
  }
  // Frees the memory of a large table, which few jobs need. Call it once the launch has ended.
  void trim() {
    if (bytes_ > kKeptBytes) resize(nullptr, 0);
  }
  std::byte* memory() const { return memory_; }

 private:
  static constexpr std::size_t kKeptBytes = 16 << 10;

  bool resize(MemoryPool* pool, std::size_t bytes);

  MemoryPool* pool_ = nullptr;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// For the holder of the baton, with the GPU's context as the current one.
class GpuKernels final : private DeviceAddresses {
 public:
  GpuKernels(const Gpus& gpus, Gpu gpu, GpuModules& modules, PinnedPool& pinned, MemoryPool& pool);
  GpuKernels(const GpuKernels&) = delete;
  GpuKernels& operator=(const GpuKernels&) = delete;

  // Launches the kernel that performs a job. Busy: nothing was launched, since the GPU does not
  // reach some memory of the job, or the kernel is not loaded. Then the job needs copies. Other
  // errors are the driver's.
  Status launch(const ComputeJob& job, StreamHandle stream, LaunchTable& table);

 private:
  Word of(const std::byte* memory) const override;
  bool reaches(std::span<const Piece> pieces);
  bool place_table(LaunchTable& table);

  const Gpus& gpus_;
  const Gpu gpu_;
  GpuModules& modules_;
  PinnedPool& pinned_;
  MemoryPool& pool_;
  LaunchPlanner planner_;
  Launch launch_;                         // its memory is used again
  std::optional<std::ptrdiff_t> offset_;  // from addresses of the pool to those of the GPU
};

}  // namespace rdmacoll::cuda
