// Work memory on GPUs: one slab on each GPU that is used, which peers of the node map by CUDA IPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/log.h"
#include "cuda/gpus.h"
#include "memory/gpu_work.h"

namespace rdmacoll::cuda {

class WorkMemory final : public GpuWork {
 public:
  WorkMemory(std::shared_ptr<Gpus> gpus, Log log) : gpus_(std::move(gpus)), log_(log) {}
  // Closes what is still open. The streams must be idle.
  ~WorkMemory() override;
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;

  Status find_slab(Gpu gpu, GpuSlab& slab) override;
  uint64_t bytes_min(Gpu gpu) const override { return slabs_.at(gpu).bytes_min; }
  std::byte* allocate(Gpu gpu, uint64_t bytes) override;
  void free(Gpu gpu, std::byte* memory) override;
  Status open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) override;
  void close(std::byte* memory) override;
  bool is_in_use() const override { return gpus_->size() > 0; }
  void count_readers(int change) override { readers_ += change; }

 private:
  struct Slab {
    Status status;
    GpuSlab description;
    uint64_t bytes_min = 0;
    std::map<uint64_t, uint64_t> free;  // begin and bytes of each hole, as offsets
    std::map<uint64_t, uint64_t> live;
  };

  Status make(Gpu gpu, Slab& slab);
  Status describe(Gpu gpu, Slab& slab);
  Status open(const GpuSlab& slab, Gpu gpu, Address& address);
  Status reach(const GpuSlab& slab, Gpu gpu);

  const std::shared_ptr<Gpus> gpus_;
  const Log log_;
  std::map<Gpu, Slab> slabs_;
  std::map<std::byte*, Gpu> opened_;  // memory of other processes
  int readers_ = 0;
};

}  // namespace rdmacoll::cuda
