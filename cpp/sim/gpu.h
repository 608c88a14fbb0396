// GPUs of a simulated rank. The processor cannot access their memory at its addresses: such an
// access ends the process, as with a real GPU. Jobs access the bytes through a second mapping.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "compute/compute.h"
#include "memory/gpu_memory_facts.h"
#include "memory/piece.h"
#include "memory/stream_order.h"
#include "operation/operation.h"

namespace rdmacoll {

class SimGpus {
 public:
  static constexpr Gpu kGpus = 2;

  // Null if the GPU is full. Freed addresses are given again at once, with another buffer id.
  std::shared_ptr<std::byte[]> allocate(Gpu gpu, uint64_t bytes);
  // Finds the allocation that holds the byte. Returns false if there is none.
  bool find(const std::byte* address, GpuAllocation& allocation) const;
  // Finds these bytes in the second mapping. They must belong to that GPU.
  std::byte* bytes_of(Gpu gpu, const void* address, std::size_t bytes) const;
  Piece reachable(const Piece& piece) const {
    if (piece.gpu == kHost || piece.bytes == 0) return piece;
    return {bytes_of(piece.gpu, piece.data, piece.bytes), piece.bytes};
  }
  // A peer's memory on a GPU, which kernels of this rank reach at this address: `bytes` has it.
  void map(const std::byte* address, std::size_t size, std::byte* bytes);
  void unmap(const std::byte* address) { mapped_.erase(address); }
  // Takes memory for tensors there first, if it is not null.
  void take_from(std::function<std::shared_ptr<std::byte[]>(Gpu, uint64_t)> arrays) {
    arrays_ = std::move(arrays);
  }
  // Moves the tensors of a request to a GPU. The contents of the inputs come with the returned
  // function, as if a kernel on the caller's stream wrote them.
  std::function<void()> take(Request& request, Gpu gpu);
  // Overwrites the tensor, so that a later access shows as a wrong result.
  void overwrite(const TensorRef& tensor, Dtype dtype) const;
  // Frees the memory of tensors that take() has moved.
  void free(const TensorRef& tensor);

 private:
  std::byte* taken(Gpu gpu, uint64_t bytes);

  struct Arena;
  std::array<std::shared_ptr<Arena>, kGpus> arenas_;  // null until the GPU is used
  struct Mapped {
    std::size_t size;
    std::byte* bytes;
  };
  std::map<const std::byte*, Mapped> mapped_;  // by address
  std::function<std::shared_ptr<std::byte[]>(Gpu, uint64_t)> arrays_;
  std::map<const std::byte*, std::shared_ptr<std::byte[]>> taken_;
};

// A job on memory of GPUs as their kernels reach it.
class ReachedJob {
 public:
  ReachedJob(const ComputeJob& job, const SimGpus& gpus);
  ReachedJob(const ReachedJob&) = delete;
  ReachedJob& operator=(const ReachedJob&) = delete;

  const ComputeJob& job() const { return job_; }

 private:
  ComputeJob job_;
  std::vector<Piece> to_;
  std::vector<Operand> operands_;
  std::vector<std::vector<Piece>> pieces_;
  std::vector<std::vector<RemotePiece>> remote_;
};

// The order with a stream whose work takes until `due`. `work` writes its results.
class SimStreamOrder final : public StreamOrder {
 public:
  SimStreamOrder(const Clock& clock, Nanoseconds due, std::function<void()> work)
      : clock_(clock), due_(due), work_(std::move(work)) {}
  Status reached(bool& is_reached) override;

 private:
  const Clock& clock_;
  const Nanoseconds due_;
  std::function<void()> work_;
};

}  // namespace rdmacoll
