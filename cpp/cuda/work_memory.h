// Work memory on GPUs: slabs on each GPU that is used, which peers of the node map by CUDA IPC.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cuda/copy_probe.h"
#include "cuda/gpu_sums.h"
#include "cuda/gpus.h"
#include "cuda/shared_arrays.h"
#include "cuda/slab_tasks.h"
#include "memory/free_extents.h"
#include "memory/gpu_work.h"

namespace rdmacoll::cuda {

class WorkMemory final : public GpuWork {
 public:
  struct Parts {
    std::shared_ptr<Gpus> gpus;
    GpuSums& sums;
    DriverThread& thread;
    const CopyProbe& copies;
    std::shared_ptr<SharedArrays> arrays;  // null: peers open no arrays
    Log log;
  };

  explicit WorkMemory(Parts parts) : parts_(std::move(parts)) {}
  // Closes what is still open, and waits until peers have closed slabs of this rank or ended. The
  // streams must be idle.
  ~WorkMemory() override;
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;

  int prepare(Gpu gpu, uint64_t bytes) override;
  const GpuSlab& slab(Gpu gpu, int number) const override {
    return memory_.at(gpu).slabs.at(static_cast<std::size_t>(number)).made->description();
  }
  void enable(Gpu gpu) override;
  uint64_t version() const override { return parts_.sums.version(); }
  uint64_t bytes_min(Gpu gpu) const override { return parts_.sums.bytes_min(gpu); }
  CopyCosts copy_costs() const override { return parts_.copies.slowest(); }
  std::byte* allocate(Gpu gpu, uint64_t bytes) override;
  void free(Gpu gpu, std::byte* memory) override;
  const GpuSlab* allocation_of(const Piece& memory, bool for_peers) override {
    return parts_.arrays == nullptr ? nullptr : parts_.arrays->allocation_of(memory, for_peers);
  }
  Status open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) override;
  void close(std::byte* memory) override;
  void forget(const GpuSlab& slab) override;
  void end_when_closed(Fd socket) override;
  void await_end(Fd socket) override { ending_.push_back(std::move(socket)); }
  // Whether the destructor waits for peers. Any thread may read it, also after the destructor.
  std::shared_ptr<const std::atomic<bool>> awaits_peers() const { return awaits_peers_; }

 private:
  struct Slab {
    std::shared_ptr<NewSlab> made;
    bool is_enabled = false;
    FreeExtents free;
    std::map<uint64_t, uint64_t> live;  // bytes by offset
  };
  struct OfGpu {
    std::vector<Slab> slabs;
    std::shared_ptr<NewSlab> next;  // in the hands of the thread
    uint64_t bytes = 0;             // sum over the slabs
    bool is_full = false;           // no further slab fits
  };
  using SlabKey = std::pair<uint64_t, uint64_t>;  // process and address of the owner

  uint64_t bytes_max(Gpu gpu) const;
  void begin_slab(Gpu gpu, OfGpu& memory, uint64_t bytes);
  void take_next(Gpu gpu, OfGpu& memory);
  // Ends the growth of the work memory, and says why.
  void refuse(Gpu gpu, OfGpu& memory, const Status& status);
  static std::byte* take(Slab& slab, uint64_t bytes);
  static void give_back(Slab& slab, uint64_t offset);
  void drop(std::shared_ptr<void> owned);

  const Parts parts_;
  std::map<Gpu, OfGpu> memory_;
  std::map<SlabKey, std::shared_ptr<Mapping>> opening_;  // by the thread, or ended since
  std::map<std::byte*, std::shared_ptr<Mapping>> opened_;
  std::vector<Fd> ending_;  // sockets of peers
  const std::shared_ptr<std::atomic<bool>> awaits_peers_ =
      std::make_shared<std::atomic<bool>>(false);
};

}  // namespace rdmacoll::cuda
