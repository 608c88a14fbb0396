// Work memory on the GPUs of a simulated rank, which its peers read (CUDA IPC). A thread makes and
// opens it, so both take time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "memory/free_extents.h"
#include "memory/gpu_work.h"
#include "sim/gpu.h"
#include "sim/script.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

class SimGpuWork final : public GpuWork {
 public:
  // `wake`: wakes the sleeping engine. All others outlive this object.
  SimGpuWork(const SimIpc& ipc, SimNetwork& network, SimGpus& gpus, std::function<void()> wake);
  ~SimGpuWork() override { *is_alive_ = false; }
  SimGpuWork(const SimGpuWork&) = delete;
  SimGpuWork& operator=(const SimGpuWork&) = delete;

  int prepare(Gpu gpu, uint64_t bytes) override;
  uint64_t version() const override { return version_; }
  const GpuSlab& slab(Gpu gpu, int number) const override;
  void enable(Gpu gpu) override;
  uint64_t bytes_min(Gpu) const override { return ipc_.bytes_min; }
  std::byte* allocate(Gpu gpu, uint64_t bytes) override;
  void free(Gpu gpu, std::byte* memory) override;
  Status open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) override;
  void close(std::byte* memory) override;
  void forget(const GpuSlab& slab) override { opening_.erase(slab.begin); }
  // Simulated peers have no sockets. Their memory stays until the end of the simulation.
  void end_when_closed(Fd) override {}
  void await_end(Fd) override {}
  const GpuSlab* allocation_of(const Piece& memory, bool for_peers) override;

  // Memory for an array that peers may read in place. Null: there is none.
  std::shared_ptr<std::byte[]> allocate_array(Gpu gpu, uint64_t bytes);
  // The process has ended. Nothing keeps the contents of its GPUs.
  void lose();
  // Batches that had work memory on a GPU.
  uint64_t allocations() const { return allocations_; }

 private:
  struct Slab {
    Slab(SimGpus& gpus, Gpu gpu, uint64_t bytes);

    std::shared_ptr<std::byte[]> memory;
    GpuSlab description;
    FreeExtents free;
    std::map<std::byte*, uint64_t> live;  // bytes
    bool is_enabled = false;
  };
  struct OfGpu {
    std::vector<std::unique_ptr<Slab>> slabs;
    bool is_being_made = false;
    std::shared_ptr<Slab> arrays;
  };
  struct Opening {
    bool is_done = false;
    bool is_refused = false;
  };

  static std::byte* take(Slab& slab, uint64_t bytes);
  void later(std::function<void()> work);

  const SimIpc& ipc_;
  SimNetwork& network_;
  SimGpus& gpus_;
  const std::function<void()> wake_;
  uint64_t version_ = 0, allocations_ = 0;
  std::optional<Gpu> ready_;  // a GPU that makes sums
  std::map<Gpu, OfGpu> memory_;
  std::map<uint64_t, Opening> opening_;  // by the begin of the peer's slab
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
};

}  // namespace rdmacoll
