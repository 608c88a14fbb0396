// All of a session that needs CUDA, opened with the first array on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "cuda/bar_writes.h"
#include "cuda/device_pool.h"
#include "cuda/gpu_compute.h"
#include "cuda/gpu_memory.h"
#include "cuda/host_copies.h"
#include "cuda/memory_kinds.h"
#include "cuda/pinned_pool.h"
#include "cuda/retired_memory.h"
#include "cuda/shared_arrays.h"
#include "cuda/stream_order.h"
#include "cuda/work_memory.h"
#include "memory/device_memory.h"

namespace rdmacoll::cuda {

struct CudaOptions {
  std::string library;  // as Driver::open takes it
  MemoryPool& pool;     // outlives all here
  Log log;
  std::function<void()> wake;  // wakes the sleeping engine, from any thread
  // The NICs that carry data of the job, and read and write memory of GPUs directly. May be empty.
  std::vector<std::string> nics;
  GpuDirectSetting gpudirect;
  std::string nvml_library;
  std::string sys = "/sys";  // this one and the next as in SystemRoots
  std::string proc = "/proc";
  std::vector<std::string> said = {};  // warnings of lost direct ways that the start has logged
  bool measures_copies = false;        // when a GPU is first used
  bool shares_arrays = false;          // with peers of the node (CUDA IPC)
  std::string gdrcopy_library = {};    // "": none
};

class CudaMemory final : public DeviceMemory {
 public:
  static Status open(CudaOptions options, std::unique_ptr<CudaMemory>& memory);
  CudaMemory(const Driver& driver, CudaOptions options);
  // Waits for kernels of the program that run.
  ~CudaMemory() override;
  // Destroys the memory. If kernels of the program still run after `limit`, or a peer still has
  // memory of this rank open, it warns, and a thread goes on. `pool`: the owner of
  // CudaOptions::pool, which is kept as long. If no thread can be started, it warns, and all stays.
  static void end(std::unique_ptr<CudaMemory> memory, std::shared_ptr<const void> pool,
                  Nanoseconds limit = 5 * kSecond);

  Status use(int number, Gpu& gpu) override { return gpus_->use(number, gpu); }
  int number_of(Gpu gpu) const override { return gpus_->facts(gpu).ordinal; }
  // At the first call for a GPU, this function and order() let a thread load kernels there, and
  // measure copies.
  Status find(const void* memory, Gpu& gpu) override;
  Status find_stream(uint64_t stream, Gpu& gpu) override { return orders_.find_gpu(stream, gpu); }
  Status order(uint64_t stream, Gpu gpu, std::shared_ptr<StreamOrder>& order) override;
  Status follow(Gpu gpu, uint64_t stream, uint64_t follower) override {
    return orders_.follow(gpu, stream, follower);
  }
  Status copy(std::span<const HostCopy> copies, CopyTo to, Gpu gpu, uint64_t stream) override {
    return host_copies_.run(copies, to, gpu, stream);
  }
  void pin(std::span<const HostCopy> copies, Gpu gpu) override;
  // Logs the reason if there is no memory.
  std::shared_ptr<std::byte[]> allocate(Gpu gpu, uint64_t bytes) override;
  std::shared_ptr<std::byte[]> allocate_array(Gpu gpu, uint64_t bytes) override;
  void retire(std::shared_ptr<std::byte[]> memory, uint64_t stream) override;

  const GpuParts& parts() const { return parts_; }
  GpuWork& work() { return work_; }
  // The thread for calls of the driver that may wait for kernels of the program.
  DriverThread& thread() { return thread_; }
  // Facts for NICs, which may outlive this object. Null without NICs.
  const std::shared_ptr<GpuMemory>& memory_for_nics() const { return gpu_memory_; }
  // Call it while the waker still exists: the driver may hold callbacks that wake it.
  void close() { sleeper_->close(); }

 private:
  void prepare(Gpu gpu);
  bool keeps(Gpu gpu);
  bool free_after_all_work(Gpu gpu, const std::shared_ptr<std::byte[]>& memory);

  const Log log_;
  const bool measures_copies_;
  const std::shared_ptr<Gpus> gpus_;
  const std::shared_ptr<EventPool> events_;
  const std::shared_ptr<Sleeper> sleeper_;
  const std::shared_ptr<DevicePool> device_pool_;
  const std::shared_ptr<SharedArrays> arrays_;  // null: peers open no arrays
  const std::shared_ptr<GpuMemory> gpu_memory_;
  MemoryKinds kinds_;
  DriverThread thread_;
  const std::shared_ptr<GpuModules> modules_;
  GpuSums sums_;
  BarWrites bar_writes_;
  CopyProbe copies_;
  StreamOrders orders_;
  HostCopies host_copies_;
  RetiredMemory retired_;
  PinnedPool pinned_;
  WorkMemory work_;
  const GpuParts parts_;
};

}  // namespace rdmacoll::cuda
