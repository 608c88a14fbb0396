// State that the two halves of a connection share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "transport/eager_budget.h"
#include "transport/rdma/gpu_flushes.h"
#include "transport/rdma/outbox.h"
#include "transport/rdma/pair.h"
#include "transport/rdma/slabs.h"
#include "transport/rdma/stages.h"

namespace rdmacoll::rdma {

// Access of NICs to memory of GPUs.
struct GpuAccess {
  GpuAccess(const GpuMemoryForNics& gpus, std::span<Device* const> devices,
            std::span<const Rail> rails, const PathSettings& path, Transport::Counters& counters)
      : facts(gpus.facts),
        registrations(*facts, devices, counters, gpus.say),
        flushes(registrations, devices, rails, path, counters) {}

  const std::shared_ptr<GpuMemoryFacts> facts;
  GpuRegistrations registrations;
  GpuFlushes flushes;
};

// State that all connections of this rank share.
struct RankState {
  Slabs& slabs;
  Stages& send_stages;
  Stages& receive_stages;
  Transport::Counters& counters;
  const Clock& clock;
  double copy_speed = 0;  // speed of this processor in bytes per nanosecond, if cuts are measured
  const std::unique_ptr<GpuAccess>& gpus;  // null: pieces of transfers are memory of the host
};

// Equal at both ends: the smaller of the two ranks' values.
struct Cuts {
  uint32_t eager_bytes = 0;  // transfers up to this size travel in messages, without a grant
  uint32_t chunk_bytes = 0;  // the most bytes of one write
};

// The processor copies small transfers, and cannot access memory of GPUs.
inline void check_eager(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    RC_ASSERT(piece.gpu == kHost, "a small transfer of GPU memory");
  }
}

// Holds the pieces that are memory of GPUs, which the caller has pinned. Returns their bytes.
uint64_t hold_gpu_memory(const RankState& rank_state, std::span<const Piece> pieces);
void release_gpu_memory(const RankState& rank_state, std::span<const Piece> pieces);

struct Link {
  Outbox outbox;
  EagerBudget ahead;        // budget for our small transfers
  std::size_t eager_bytes;  // the budget of the peer's small transfers
  std::span<Pair> pairs;    // by rail
  Cuts cuts;
  // The reason why this connection cannot go on, or "".
  std::string fault;
};

// The most places that a peer has granted and that are not written yet.
inline constexpr std::size_t kTargetsMax = 4096;

}  // namespace rdmacoll::rdma
