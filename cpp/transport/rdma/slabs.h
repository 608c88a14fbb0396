// Registers the pool with the devices slab by slab, each when memory of it is first used: a job
// that touches little pins little. Beside the pool, memory of callers that they have shown.
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

// Ports that share the traffic of one pair of ranks.
inline constexpr std::size_t kRailsMax = 4;

// By rail: every device has keys of its own.
using RailKeys = std::array<MemoryKeys, kRailsMax>;

// Memory that is registered with all devices for as long as this lives.
class RegisteredMemory {
 public:
  Status open(std::span<Device* const> devices, std::byte* memory, std::size_t bytes,
              Transport::Counters& counters);
  const RailKeys& keys() const { return keys_; }

 private:
  std::array<std::unique_ptr<Registration>, kRailsMax> registrations_;
  RailKeys keys_{};
};

class Slabs {
 public:
  // From here on the pool keeps its pages: a device would go on writing into those that were given
  // back.
  Slabs(MemoryPool& pool, std::span<Device* const> devices, Transport::Counters& counters);

  bool contains(const Piece& piece) const {
    return pool_.contains(piece.data, piece.bytes) || is_pinned(piece);
  }
  // As in Transport.
  bool pin(const Piece& memory);
  void unpin(const Piece& memory);
  bool is_pinned(const Piece& piece) const { return find(piece) != nullptr; }
  bool has_unpinned() const { return !unpinned_.empty(); }
  // No transfer is under way: the devices forget what was unpinned.
  void forget_unpinned() { unpinned_.clear(); }

  // How many bytes from `address` on lie in its slab, or in what is pinned.
  std::size_t reach(const std::byte* address) const;
  // Null, and `status` says why, when the slab cannot be registered.
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
  using Place = std::pair<const std::byte*, std::size_t>;  // where it begins, and its bytes

  std::size_t index(const std::byte* address) const;
  // What is pinned and holds all of `piece`, or null.
  const Pinned* find(const Piece& piece) const;
  // What holds this byte of a transfer, unpinned by now or not.
  const Pinned& holder(const std::byte* address) const;

  MemoryPool& pool_;
  std::span<Device* const> devices_;
  Transport::Counters& counters_;
  std::size_t slab_bytes_;
  std::vector<std::unique_ptr<RegisteredMemory>> slabs_;
  std::map<Place, Pinned> pinned_;
  std::vector<Pinned> unpinned_;  // and perhaps used by transfers under way
};

}  // namespace rdmacoll::rdma
