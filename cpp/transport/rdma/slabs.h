// Registers the pool with the devices slab by slab, each when memory of it is first used: a job
// that touches little pins little.
#pragma once

#include <array>
#include <memory>
#include <span>
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

  bool contains(const Piece& piece) const { return pool_.contains(piece.data, piece.bytes); }
  // How many bytes from `address` on lie in its slab.
  std::size_t reach(const std::byte* address) const;
  // Null, and `status` says why, when the slab cannot be registered.
  const RailKeys* keys(const std::byte* address, Status& status);

 private:
  std::size_t index(const std::byte* address) const;

  MemoryPool& pool_;
  std::span<Device* const> devices_;
  Transport::Counters& counters_;
  std::size_t slab_bytes_;
  std::vector<std::unique_ptr<RegisteredMemory>> slabs_;
};

}  // namespace rdmacoll::rdma
