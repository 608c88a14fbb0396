// State that the two halves of a connection share.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "transport/eager_budget.h"
#include "transport/rdma/outbox.h"
#include "transport/rdma/pair.h"
#include "transport/rdma/slabs.h"
#include "transport/rdma/stages.h"

namespace rdmacoll::rdma {

// State that all connections of this rank share.
struct RankState {
  Slabs& slabs;
  Stages& send_stages;
  Stages& receive_stages;
  Transport::Counters& counters;
  const Clock& clock;
  double copy_speed = 0;  // speed of this processor in bytes per nanosecond, if cuts are measured
};

// Equal at both ends: the smaller of the two ranks' values.
struct Cuts {
  uint32_t eager_bytes = 0;  // transfers up to this size travel in messages, without a grant
  uint32_t chunk_bytes = 0;  // the most bytes of one write
};

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
inline constexpr std::size_t kPlacesMax = 4096;

}  // namespace rdmacoll::rdma
