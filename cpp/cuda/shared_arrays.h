// Memory of GPUs for callers' arrays that peers of the node read in place. The arrays lie in large
// allocations, so that peers open few of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "cuda/driver_thread.h"
#include "cuda/gpus.h"
#include "cuda/slab_tasks.h"
#include "memory/free_extents.h"
#include "memory/gpu_work.h"
#include "memory/piece.h"

namespace rdmacoll::cuda {

// Any thread may call it.
class SharedArrays : public std::enable_shared_from_this<SharedArrays> {
 public:
  SharedArrays(std::shared_ptr<Gpus> gpus, Log log) : gpus_(std::move(gpus)), log_(log) {}
  SharedArrays(const SharedArrays&) = delete;
  SharedArrays& operator=(const SharedArrays&) = delete;

  // Takes memory for an array, which keeps this object alive. Null: there is none that peers could
  // open. `thread` frees what cannot be used, since the driver may wait for kernels then.
  std::shared_ptr<std::byte[]> allocate(Gpu gpu, uint64_t bytes, DriverThread& thread);
  // The allocation that has all of this memory, or null. With `for_peers` they may open it from now
  // on, so it stays as long as this object.
  const GpuSlab* allocation_of(const Piece& memory, bool for_peers);
  // Whether trim() would free memory.
  bool keeps(Gpu gpu);
  // Frees allocations without arrays that no peer has open. The driver waits for kernels that run.
  void trim(Gpu gpu);

 private:
  struct Allocation {
    Gpu gpu = kHost;
    std::shared_ptr<NewSlab> made;
    FreeExtents free;
    uint64_t bytes_of_arrays = 0;
    bool is_shared = false;

    bool is_idle(Gpu of) const { return gpu == of && bytes_of_arrays == 0 && !is_shared; }
  };
  using Allocations = std::map<uint64_t, Allocation>;  // by address

  std::shared_ptr<std::byte[]> take(Gpu gpu, uint64_t bytes);
  void give_back(uint64_t address, uint64_t bytes);
  Allocations::iterator find(uint64_t address, uint64_t bytes);
  void say_copied(Gpu gpu, const std::string& why);

  const std::shared_ptr<Gpus> gpus_;
  const Log log_;
  std::mutex mutex_;
  Allocations allocations_;
  std::set<Gpu> refused_;  // their memory is not for peers, which the work memory says
  std::set<Gpu> said_;
};

}  // namespace rdmacoll::cuda
