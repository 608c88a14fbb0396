// Work memory on GPUs: slabs on each GPU that is used, which peers of the node map by CUDA IPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cuda/gpus.h"
#include "memory/free_extents.h"
#include "memory/gpu_work.h"

namespace rdmacoll::cuda {

class WorkMemory final : public GpuWork {
 public:
  WorkMemory(std::shared_ptr<Gpus> gpus, Log log) : gpus_(std::move(gpus)), log_(log) {}
  // Closes what is still open. The streams must be idle.
  ~WorkMemory() override;
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;

  int prepare(Gpu gpu, uint64_t bytes) override;
  const GpuSlab& slab(Gpu gpu, int number) const override {
    return memory_.at(gpu).slabs.at(static_cast<std::size_t>(number)).description;
  }
  void enable(Gpu gpu) override;
  uint64_t bytes_min(Gpu gpu) const override { return memory_.at(gpu).bytes_min; }
  std::byte* allocate(Gpu gpu, uint64_t bytes) override;
  void free(Gpu gpu, std::byte* memory) override;
  Status open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) override;
  void close(std::byte* memory) override;
  bool is_in_use() const override { return gpus_->size() > 0; }
  void count_readers(int change) override { readers_ += change; }

 private:
  struct Slab {
    GpuSlab description = {};
    bool is_enabled = false;
    FreeExtents free;
    std::map<uint64_t, uint64_t> live;  // bytes by offset
  };
  struct OfGpu {
    std::vector<Slab> slabs;
    uint64_t bytes_min = 0;
    uint64_t bytes = 0;    // sum over the slabs
    bool is_full = false;  // no further slab fits
  };

  uint64_t bytes_max(Gpu gpu) const;
  Status add_slab(Gpu gpu, OfGpu& memory, uint64_t bytes);
  Status describe(Gpu gpu, OfGpu& memory, GpuSlab& slab);
  static std::byte* take(Slab& slab, uint64_t bytes);
  static void give_back(Slab& slab, uint64_t offset);
  Status open(const GpuSlab& slab, Gpu gpu, Address& address);
  Status reach(const GpuSlab& slab, Gpu gpu);

  const std::shared_ptr<Gpus> gpus_;
  const Log log_;
  std::map<Gpu, OfGpu> memory_;
  std::map<std::byte*, Gpu> opened_;  // memory of other processes
  int readers_ = 0;
};

}  // namespace rdmacoll::cuda
