// Registers the pool with the devices, slab by slab, each at its first use. So a job that touches
// little memory pins little. It also registers memory that callers have pinned. It finds the keys
// of all memory, that of GPUs included.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "memory/pool.h"
#include "transport/rdma/verbs.h"
#include "transport/transport.h"

namespace rdmacoll::rdma {

// The most ports that share the traffic of one pair of ranks.
inline constexpr std::size_t kRailsMax = 4;

// By rail, since every device has its own keys.
using RailKeys = std::array<MemoryKeys, kRailsMax>;

// Memory that is registered with all devices during this object's life.
class RegisteredMemory {
 public:
  Status open(std::span<Device* const> devices, std::byte* memory, std::size_t bytes,
              Transport::Counters& counters);
  const RailKeys& keys() const { return keys_; }

 private:
  std::array<std::unique_ptr<Registration>, kRailsMax> registrations_;
  RailKeys keys_{};
};

class GpuRegistrations;

class Slabs {
 public:
  // From now on the pool keeps its pages. A device would continue to write into pages that were
  // given back to the system.
  Slabs(MemoryPool& pool, std::span<Device* const> devices, Transport::Counters& counters);

  // Memory of GPUs can be pinned from now on.
  void add_gpus(GpuRegistrations& gpus) { gpus_ = &gpus; }

  bool contains(const Piece& piece) const {
    return pool_.contains(piece.data, piece.bytes) || is_pinned(piece);
  }
  // As in Transport.
  bool pin(const Piece& memory);
  void unpin(const Piece& memory);
  bool is_pinned(const Piece& piece) const {
    return piece.gpu == kHost ? find(piece) != nullptr : is_held(piece);
  }
  // Returns true if the address is of pinned memory of a GPU.
  bool is_of_gpu(const std::byte* address) const;
  bool has_unpinned() const { return !unpinned_.empty(); }
  // Call when no transfer is under way. The devices forget the unpinned ranges.
  void forget_unpinned() { unpinned_.clear(); }

  // The number of bytes from `address` to the end of its slab or pinned range.
  std::size_t reach(const std::byte* address) const;
  // Returns null if the slab cannot be registered. `status` then has the error.
  const RailKeys* keys(const std::byte* address, Status& status);

 private:
  struct Pinned {
    Piece memory;
    uint32_t pins = 0;
    std::unique_ptr<RegisteredMemory> registered;

    bool holds(const Piece& piece) const {
      return piece.data >= memory.data && piece.data + piece.bytes <= memory.data + memory.bytes;
    }
  };
  using Range = std::pair<const std::byte*, std::size_t>;  // begin and length

  std::size_t index(const std::byte* address) const;
  bool is_held(const Piece& piece) const;
  // The pinned range that holds all of `piece`, or null.
  const Pinned* find(const Piece& piece) const;
  // The range that holds this byte of a transfer, even if it is unpinned by now.
  const Pinned& holder(const std::byte* address) const;

  MemoryPool& pool_;
  std::span<Device* const> devices_;
  Transport::Counters& counters_;
  GpuRegistrations* gpus_ = nullptr;
  std::size_t slab_bytes_;
  std::vector<std::unique_ptr<RegisteredMemory>> slabs_;
  std::map<Range, Pinned> pinned_;
  std::vector<Pinned> unpinned_;  // may still be used by transfers under way
};

}  // namespace rdmacoll::rdma
