// Which algorithm, and how large a segment. Pure; asked by the root of the control tree only, with
// rank 0's numbers, since ranks that choose for themselves end in choosing differently.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// Cuts in bytes. Those within a node are measured (2 to 4 ranks on 2 cores), the others first
// values, until a measurement of the fabric replaces them.
struct Tuning {
  uint64_t doubling_bytes_shared = 8 << 10;    // recursive doubling up to here, in one node
  uint64_t doubling_bytes_network = 16 << 10;  // ... and between nodes
  int direct_ranks_network = 8;                // above: ring, since p-1 senders meet at one port
  uint64_t direct_bytes_network = 1 << 20;
  uint64_t binomial_bytes_network = 64 << 10;  // broadcast: above, the two trees
  uint64_t gather_bytes_network = 32 << 10;    // allgather by doubling up to here, of all ranks
  // In one node callers' memory is packed into shared memory, where it is still in the cache when
  // the peer reads it, or from one_copy_bytes on read where it lies. A small sum is one segment.
  uint64_t one_copy_bytes = 32 << 20;
  uint64_t whole_bytes_shared = 1 << 20;
  uint64_t packed_segment_bytes_shared = 256 << 10;
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
