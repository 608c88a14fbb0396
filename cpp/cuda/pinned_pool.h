// Pins the engine's pool for the GPUs, slab by slab, each at its first use with a GPU. Copies from
// and to pinned memory run beside the host's work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cuda/gpus.h"
#include "memory/pool.h"

namespace rdmacoll::cuda {

// For the holder of the baton.
class PinnedPool {
 public:
  // Large slabs, since a registration has a fixed cost.
  static constexpr std::size_t kSlabBytes = std::size_t{16} << 20;

  PinnedPool(const Gpus& gpus, MemoryPool& pool, Log log);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Pins the slabs of a piece of the pool for all GPUs. Other memory stays as it is. Memory that
  // cannot be pinned is used all the same, more slowly, which is logged once. `gpu`: one in use.
  void pin(const std::byte* memory, std::size_t bytes, Gpu gpu);
  // Bytes from here to the end of a slab. A copy beyond it would be refused, since the driver knows
  // the next slab as other memory. Memory outside the pool has no such end.
  std::size_t reach(const std::byte* memory) const {
    if (!pool_.contains(memory, 1)) return SIZE_MAX;
    return kSlabBytes - static_cast<std::size_t>(memory - pool_.base()) % kSlabBytes;
  }
  // Whether kernels of the GPU reach this memory of the pool: all of it is pinned, and the GPU has
  // it in one piece. Its address there is its own plus `offset`. The GPU's context must be the
  // current one.
  bool find_offset(const std::byte* memory, std::size_t bytes, Gpu gpu, std::ptrdiff_t& offset);
  uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  enum class Slab : uint8_t { untouched, pinned, unpinned, of_others };

  void pin_slab(std::size_t index, Gpu gpu);
  std::optional<std::ptrdiff_t> find_offset(std::size_t index, Gpu gpu);
  std::size_t slab_bytes(std::size_t index) const;

  const Gpus& gpus_;
  MemoryPool& pool_;
  const Log log_;
  std::vector<Slab> slabs_;
  // A GPU's address of a slab minus the host's, by GPU and slab. Empty if the GPU has no address
  // for the slab.
  std::map<std::pair<Gpu, std::size_t>, std::optional<std::ptrdiff_t>> offsets_;
  Gpu gpu_ = kHost;  // the one whose context registers
  uint64_t pinned_bytes_ = 0;
  bool has_logged_ = false, has_logged_unreached_ = false;
};

}  // namespace rdmacoll::cuda
