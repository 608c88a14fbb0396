// The slow halves of work memory: a new slab, and the mapping of a peer's one. The driver may wait
// for kernels of the program in each of their calls, so a thread of the engine's own makes them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "cuda/gpus.h"
#include "memory/gpu_work.h"

namespace rdmacoll::cuda {

// A random number of this process, by which peers tell their own memory from that of others.
uint64_t number_of_process();

// A slab of work memory, and how peers open it. Its end frees the memory.
class NewSlab {
 public:
  NewSlab(std::shared_ptr<Gpus> gpus, Gpu gpu, uint64_t bytes);
  ~NewSlab() { release(); }
  NewSlab(const NewSlab&) = delete;
  NewSlab& operator=(const NewSlab&) = delete;

  // Allocates the memory. The thread calls it once. Memory that cannot be opened is freed.
  void make();
  // The same for any other thread, which must not free memory. Call one of the two.
  Status build();
  // Whether make() has ended. Only then the next functions may be called.
  bool is_ended() const { return is_ended_.load(std::memory_order_acquire); }
  const Status& status() const { return status_; }
  const GpuSlab& description() const { return slab_; }

 private:
  Status allocate();
  Status check_capable() const;
  Status describe();
  void release();

  const std::shared_ptr<Gpus> gpus_;
  const Gpu gpu_;
  GpuSlab slab_ = {};
  Status status_;
  std::atomic<bool> is_ended_{false};
};

// Memory of a peer that kernels of a GPU reach. Its end closes it.
class Mapping {
 public:
  Mapping(std::shared_ptr<Gpus> gpus, Gpu gpu, const GpuSlab& slab)
      : gpus_(std::move(gpus)), gpu_(gpu), slab_(slab) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Opens the memory. The thread calls it once.
  void make();
  // Whether make() has ended. Only then status() and memory() may be called.
  bool is_ended() const { return is_ended_.load(std::memory_order_acquire); }
  const Status& status() const { return status_; }
  std::byte* memory() const { return reinterpret_cast<std::byte*>(address_); }
  Gpu gpu() const { return gpu_; }

 private:
  bool is_of_this_process() const { return slab_.process == number_of_process(); }
  Status open();
  Status reach();

  const std::shared_ptr<Gpus> gpus_;
  const Gpu gpu_;
  const GpuSlab slab_;
  Address address_ = 0;
  Status status_ = Status::busy();
  std::atomic<bool> is_ended_{false};
};

}  // namespace rdmacoll::cuda
