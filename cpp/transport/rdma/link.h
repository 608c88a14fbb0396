// What the two halves of a connection share.
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

// Of every connection of this rank.
struct Home {
  Slabs& slabs;
  Stages& send_stages;
  Stages& receive_stages;
  Transport::Counters& counters;
  const Clock& clock;
  double copy_speed = 0;  // of this processor in bytes per nanosecond, where cuts are found
};

// Equal at both ends: the smaller of both.
struct Cuts {
  uint32_t eager_bytes = 0;  // transfers up to here travel in messages, without a grant
  uint32_t chunk_bytes = 0;  // of one write
};

struct Link {
  Outbox outbox;
  EagerBudget ahead;        // of our small transfers,
  std::size_t eager_bytes;  // as of the peer's
  std::span<Pair> pairs;    // by rail
  Cuts cuts;
  // Why this connection cannot go on, or "".
  std::string fault;
};

// Places that a peer has granted and that are not written yet.
inline constexpr std::size_t kPlacesMax = 4096;

}  // namespace rdmacoll::rdma
