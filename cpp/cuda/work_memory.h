// Work memory on GPUs: slabs on each GPU that is used, which peers of the node map by CUDA IPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cuda/gpu_sums.h"
#include "cuda/gpus.h"
#include "memory/free_extents.h"
#include "memory/gpu_work.h"

namespace rdmacoll::cuda {

class WorkMemory final : public GpuWork {
 public:
  WorkMemory(std::shared_ptr<Gpus> gpus, GpuSums& sums, Log log)
      : gpus_(std::move(gpus)), sums_(sums), log_(log) {}
  // Closes what is still open, and waits a short time for peers whose connections have ended. The
  // streams must be idle.
  ~WorkMemory() override;
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;

  int prepare(Gpu gpu, uint64_t bytes) override;
  const GpuSlab& slab(Gpu gpu, int number) const override {
    return memory_.at(gpu).slabs.at(static_cast<std::size_t>(number)).description;
  }
  void enable(Gpu gpu) override;
  uint64_t version() const override { return sums_.version(); }
  uint64_t bytes_min(Gpu gpu) const override { return sums_.bytes_min(gpu); }
  std::byte* allocate(Gpu gpu, uint64_t bytes) override;
  void free(Gpu gpu, std::byte* memory) override;
  Status open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) override;
  void close(std::byte* memory) override;
  void count_readers(int change) override { readers_ += change; }
  void await_end(Fd socket, int readers) override {
    ending_.push_back({std::move(socket), readers});
  }

 private:
  struct Slab {
    GpuSlab description = {};
    bool is_enabled = false;
    FreeExtents free;
    std::map<uint64_t, uint64_t> live;  // bytes by offset
  };
  struct OfGpu {
    std::vector<Slab> slabs;
    uint64_t bytes = 0;    // sum over the slabs
    bool is_full = false;  // no further slab fits
  };

  struct EndingPeer {
    Fd socket;
    int readers = 0;
  };

  void await_ends();
  uint64_t bytes_max(Gpu gpu) const;
  Status add_slab(Gpu gpu, OfGpu& memory, uint64_t bytes);
  Status describe(Gpu gpu, GpuSlab& slab) const;
  static std::byte* take(Slab& slab, uint64_t bytes);
  static void give_back(Slab& slab, uint64_t offset);
  Status open(const GpuSlab& slab, Gpu gpu, Address& address);
  Status reach(const GpuSlab& slab, Gpu gpu);

  const std::shared_ptr<Gpus> gpus_;
  GpuSums& sums_;
  const Log log_;
  std::map<Gpu, OfGpu> memory_;
  std::map<std::byte*, Gpu> opened_;  // memory of other processes
  int readers_ = 0;
  std::vector<EndingPeer> ending_;
};

}  // namespace rdmacoll::cuda
