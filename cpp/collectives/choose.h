// Which algorithm, and how large a segment. Pure; asked by the root of the control tree only, with
// rank 0's numbers, since ranks that choose for themselves end in choosing differently.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// Cuts in bytes: first values, until a measurement of the fabric replaces them.
struct Tuning {
  uint64_t doubling_bytes_shared = 8 << 10;    // recursive doubling up to here, in one node
  uint64_t doubling_bytes_network = 16 << 10;  // ... and between nodes
  int direct_ranks_network = 8;                // above: ring, since p-1 senders meet at one port
  uint64_t direct_bytes_network = 1 << 20;
  uint64_t segment_bytes_shared = 4 << 20;
  uint64_t segment_bytes_network = 4 << 20;
};

struct Facts {
  int ranks = 1;
  bool one_node = true;  // everybody views everybody's memory
  uint64_t bytes = 0;
  Dtype dtype = Dtype::float32;
  bool canonical = false;
  std::optional<Algorithm> forced;        // RDMACOLL_ALLREDUCE_ALGORITHM
  std::optional<uint64_t> segment_bytes;  // RDMACOLL_SEGMENT_BYTES
};

struct Choice {
  Algorithm algorithm = Algorithm::none;
  uint64_t segment_bytes = 0;
};

Choice choose_allreduce(const Tuning& tuning, const Facts& facts);
Choice choose_broadcast(const Tuning& tuning, const Facts& facts);
Choice choose_allgather(const Tuning& tuning, const Facts& facts);

}  // namespace rdmacoll
