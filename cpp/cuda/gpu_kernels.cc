#include "cuda/gpu_kernels.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/text.h"

namespace rdmacoll::cuda {

bool LaunchTable::resize(MemoryPool* pool, std::size_t bytes) {
  if (pool_ != nullptr) pool_->free(memory_);
  memory_ = pool == nullptr ? nullptr : pool->allocate(bytes);
  pool_ = memory_ == nullptr ? nullptr : pool;
  bytes_ = memory_ == nullptr ? 0 : bytes;
  return memory_ != nullptr;
}

GpuKernels::GpuKernels(const Gpus& gpus, Gpu gpu, PinnedPool& pinned, MemoryPool& pool, Log log)
    : gpus_(gpus),
      gpu_(gpu),
      pinned_(pinned),
      pool_(pool),
      log_(log),
      planner_(static_cast<unsigned>(std::max(1, gpus.facts(gpu).multiprocessors)), this) {}

GpuKernels::~GpuKernels() {
  if (gpus_.driver().is_forked_child()) return;
  const ScopedContext scope(gpus_, gpu_);
  if (!scope.status().ok()) return;
  for (const auto& [kernel, loaded] : loaded_) {
    if (loaded.module != nullptr) gpus_.driver().call.cuModuleUnload(loaded.module);
  }
}

bool GpuKernels::launch(const ComputeJob& job, StreamHandle stream, LaunchTable& table) {
  offset_.reset();
  if (!reaches(job.to)) return false;
  for (const Operand& source : job.sources) {
    if (!source.remote.empty() || !reaches(source.pieces)) return false;
  }
  if (!planner_.prepare(job, launch_).ok()) return false;
  if (launch_.blocks == 0) return true;
  const FunctionHandle kernel = function(launch_.kernel);
  if (kernel == nullptr || !place_table(table)) return false;
  void* parameters[] = {&launch_.parameters};
  return gpus_.driver().call.cuLaunchKernel(kernel, launch_.blocks, 1, 1, kThreads, 1, 1, 0, stream,
                                            parameters, nullptr) == kSuccess;
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

// A kernel that the driver refuses is not tried again.
FunctionHandle GpuKernels::function(int kernel) {
  const auto [entry, is_new] = loaded_.try_emplace(kernel);
  Loaded& loaded = entry->second;
  if (!is_new) return loaded.function;
  const Kernel& source = kernels()[static_cast<std::size_t>(kernel)];
  const Driver& driver = gpus_.driver();
  Result result = driver.call.cuModuleLoadData(&loaded.module, source.ptx);
  if (result == kSuccess) {
    result = driver.call.cuModuleGetFunction(&loaded.function, loaded.module,
                                             std::string(source.name).c_str());
  }
  if (result == kSuccess) return loaded.function;
  loaded.function = nullptr;
  log_.warning(cat(
      driver
          .error(result, cat("loading the kernel ", source.name, " on ", gpus_.facts(gpu_).text()))
          .message(),
      " Many small tensors are copied more slowly without."));
  return nullptr;
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
