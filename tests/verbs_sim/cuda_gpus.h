// The GPUs of the fake CUDA driver (tests/cuda_sim), as NICs find them.
//
// The driver has the bytes that kernels see. Writes of NICs are kept here until a flush covers
// them. NICs that read find them at once. All hosts of a process share the driver.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "verbs_sim/nic_memory.h"

namespace rdmacoll::verbs_sim {

struct CudaGpuCounters {
  uint64_t peer_mappings = 0;   // by the peer-memory module
  uint64_t dma_bufs = 0;        // mapped descriptors
  uint64_t stale_accesses = 0;  // by NICs, to other memory than is at the address
  uint64_t bar1_refusals = 0;   // registrations that did not fit
  uint64_t unsynchronized = 0;  // registrations before SYNC_MEMOPS
  uint64_t flushes_by_call = 0;
  uint64_t flushes_by_read = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

class CudaGpus final : public GpusOfHost {
 public:
  // The GPUs of the driver at this path. They stay until the process ends, since the driver calls
  // them. `driver` is open.
  static CudaGpus& of(const std::string& library, const cuda::Driver& driver);

  CudaGpuCounters counters();
  void reset_counters();
  // Bytes of BAR1 that registrations take now.
  uint64_t bar1_used();
  // Calls of NICs: the next `after` registrations succeed, and the `count` ones behind them fail.
  void refuse_registrations(int after, int count);

  bool owns(const std::byte* address) const override;
  int map(std::byte* address, std::size_t bytes, std::unique_ptr<Range>& range) override;
  int map_dma_buf(const rdma::DmaBufPart& part, std::unique_ptr<Range>& range) override;
  void flush_by(const void* nic, Gpu gpu) override;

 private:
  class Registered;
  // A write of a NIC that kernels do not see yet.
  struct Unflushed {
    const void* nic = nullptr;
    Gpu gpu = 0;
    const std::byte* address = nullptr;
    std::byte* visible = nullptr;  // the place of its bytes for kernels
    std::vector<std::byte> bytes;
  };
  // Functions of the fake driver beside those of CUDA.
  struct Functions {
    void* (*bytes)(unsigned long long address, std::size_t bytes) = nullptr;
    int (*gpu)(unsigned long long address) = nullptr;
    int (*take_bar1)(int gpu, long long bytes) = nullptr;
    void (*on_flush)(void (*function)(int gpu, void* context), void* context) = nullptr;
  };

  CudaGpus(const std::string& library, const cuda::Driver& driver);
  unsigned long long attribute(const std::byte* address, cuda::PointerAttribute which) const;
  bool orders_writes(Gpu gpu) const;
  bool is_refused();
  int charge(std::unique_ptr<Registered> range, std::unique_ptr<Range>& charged);
  // Shows the writes of one NIC to one GPU, or of all NICs.
  void show(Gpu gpu, const void* nic);
  // Shows the writes that this function chooses.
  template <typename Choose>
  void show_if(Choose choose);

  const cuda::Driver& driver_;
  Functions call_;
  // Never held during a call of the driver, which calls show() under a lock of its own.
  std::mutex mutex_;
  std::vector<Unflushed> unflushed_;
  CudaGpuCounters counters_;
  uint64_t bar1_used_ = 0;
  int accepted_ = 0;
  int refused_ = 0;
};

}  // namespace rdmacoll::verbs_sim
