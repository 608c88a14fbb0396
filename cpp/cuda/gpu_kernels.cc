#include "cuda/gpu_kernels.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace rdmacoll::cuda {

bool LaunchTable::resize(MemoryPool* pool, std::size_t bytes) {
  if (pool_ != nullptr) pool_->free(memory_);
  memory_ = pool == nullptr ? nullptr : pool->allocate(bytes);
  pool_ = memory_ == nullptr ? nullptr : pool;
  bytes_ = memory_ == nullptr ? 0 : bytes;
  return memory_ != nullptr;
}

GpuKernels::GpuKernels(const Gpus& gpus, Gpu gpu, GpuModules& modules, PinnedPool& pinned,
                       MemoryPool& pool)
    : gpus_(gpus),
      gpu_(gpu),
      modules_(modules),
      pinned_(pinned),
      pool_(pool),
      planner_(static_cast<unsigned>(std::max(1, gpus.facts(gpu).multiprocessors)), this) {}

Status GpuKernels::launch(const ComputeJob& job, StreamHandle stream, LaunchTable& table) {
  offset_.reset();
  if (!reaches(job.to)) return Status::busy();
  for (const Operand& source : job.sources) {
    if (!source.remote.empty() || !reaches(source.pieces)) return Status::busy();
  }
  if (!planner_.prepare(job, launch_).ok()) return Status::busy();
  if (launch_.blocks == 0) return {};
  const FunctionHandle kernel = modules_.find(gpu_, launch_.kernel);
  if (kernel == nullptr || !place_table(table)) return Status::busy();
  void* parameters[] = {&launch_.parameters};
  const Driver& driver = gpus_.driver();
  const Result result = driver.call.cuLaunchKernel(kernel, launch_.blocks, 1, 1, kThreads, 1, 1, 0,
                                                   stream, parameters, nullptr);
  if (result == kSuccess) return {};
  return driver.error(
      result, cat("cuLaunchKernel of ", kernels()[static_cast<std::size_t>(launch_.kernel)].name,
                  " on ", gpus_.facts(gpu_).text()));
}

// All host memory of a job must have one offset.
bool GpuKernels::reaches(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0 || piece.gpu == gpu_) continue;
    std::ptrdiff_t offset = 0;
    const bool is_in_reach =
        piece.gpu == kHost && pinned_.find_offset(piece.data, piece.bytes, gpu_, offset);
    if (!is_in_reach || offset_.value_or(offset) != offset) return false;
    offset_ = offset;
  }
  return true;
}

Word GpuKernels::of(const std::byte* memory) const {
  const auto address = reinterpret_cast<Word>(memory);
  return pool_.contains(memory, 1) ? address + static_cast<Word>(offset_.value_or(0)) : address;
}

bool GpuKernels::place_table(LaunchTable& table) {
  if (launch_.table.empty()) return true;
  const std::size_t bytes = launch_.table.size() * sizeof(Word);
  if (!table.reserve(pool_, bytes)) return false;
  std::ptrdiff_t offset = 0;
  if (!pinned_.find_offset(table.memory(), bytes, gpu_, offset)) return false;
  std::memcpy(table.memory(), launch_.table.data(), bytes);
  launch_.parameters.table = reinterpret_cast<Word>(table.memory()) + static_cast<Word>(offset);
  return true;
}

}  // namespace rdmacoll::cuda
