// Which algorithm, and how large a segment. Pure; asked by the root of the control tree only, with
// rank 0's numbers, since ranks that choose for themselves end in choosing differently.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/link_model.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// Cuts in bytes. Those within a node are measured (2 to 4 ranks on 2 cores). Those between nodes
// are the cost model's (`rdmacoll plan` shows it), until a measurement of the fabric replaces them:
// here for RDMA of 100 Gbit/s, in socket_tuning() for TCP of 10.
struct Tuning {
  int one_shot_ranks_shared = 8;                    // one round up to here, in one node,
  uint64_t one_shot_bytes_shared = 64 << 10;        // ... and here, of all ranks together
  uint64_t doubling_bytes_shared = 32 << 10;        // recursive doubling up to here, in one node
  uint64_t doubling_bytes_shared_pair = 128 << 10;  // ... between two ranks
  uint64_t doubling_bytes_network = 8 << 10;        // ... between nodes
  uint64_t doubling_bytes_uneven = 2 << 10;         // ... where some serve several partners
  uint64_t doubling_bytes_long_way = 2 << 10;       // ... more of whose rounds cross than by nodes
  uint64_t doubling_bytes_pair = 16 << 10;  // ... between two ranks, where nothing goes twice
  uint64_t doubling_bytes_port = 32 << 10;  // ... of all ranks of a node, which send all at once
  int direct_ranks_network = 8;             // above, p-1 messages each are too many
  uint64_t direct_bytes_pair = 1 << 20;     // ... unless each pair has so much for each rank
  uint64_t direct_bytes_network = 1 << 20;  // above, a ring adds while it moves
  int direct_ranks_at_once = 8;             // above, more send to one port at once than it bears
  uint64_t direct_bytes_at_once = 1 << 20;  // ... unless it is no more than this
  uint64_t direct_bytes_port = 256 << 10;   // of three ranks on two nodes
  // 16-bit floats, whose partial sums are twice as long: up to here in nodes that are shared they
  // meet at one place, in an allreduce and in a reduce-scatter.
  int wide_ranks_port = 7;
  int wide_ranks_scattered = 8;
  uint64_t halving_bytes_network = 4 << 20;    // where direct has too many ranks
  int ring_ranks_network = 48;                 // above, halving for all sizes: `sim scale`
  int ring_ranks_uneven = 64;                  // ... where some serve several partners
  uint64_t binomial_bytes_network = 24 << 10;  // broadcast: above, the two trees
  uint64_t binomial_bytes_pair = 64 << 10;     // ... between two ranks, where they are a chain
  // Reduce-scatter: above, a ring adds while it moves; at least, of each rank, and where nodes
  // share ports, divided by the square of their ranks.
  uint64_t scatter_bytes_network = 512 << 10;
  uint64_t scatter_bytes_rank = 64 << 10;
  uint64_t scatter_bytes_port = 300 << 10;
  int scatter_ranks_port = 8;  // of a node: above, a ring sends less through its port
  // Reduce along a tree: at least, of each rank; or always where nodes have several ranks.
  uint64_t reduce_bytes_network = 8 << 10;
  uint64_t reduce_bytes_rank = 3 << 9;
  bool reduces_by_node = false;
  uint64_t reduce_bytes_wide = 32 << 10;  // ... or here where partial sums are wide,
  int reduce_ranks_wide = 32;             // ... of no more ranks
  // Allgather by doubling: of each rank; where they are few and some serve several partners; of
  // all where they share ports, and where more rounds cross than by nodes.
  uint64_t gather_bytes_rank = 32 << 10;
  uint64_t gather_bytes_uneven = 8 << 10;
  uint64_t gather_bytes_port = 32 << 10;
  uint64_t gather_bytes_long_way = 16 << 10;
  // Alltoall: many ranks, little for each pair; less where they share ports.
  int bruck_ranks_network = 12;
  uint64_t bruck_bytes_network = 1 << 10;
  uint64_t bruck_bytes_port = 512;
  // In one node callers' memory is packed into shared memory, where it is still in the cache when
  // the peer reads it: two such copies take less time than one by the kernel, which reads where it
  // lies, but where each byte goes to one rank. A small sum is one segment.
  uint64_t one_copy_bytes = UINT64_MAX;
  uint64_t one_copy_bytes_scattered = 4 << 20;
  uint64_t whole_bytes_shared = 1 << 20;
  uint64_t packed_segment_bytes_rank = 128 << 10;
  uint64_t segment_bytes_shared = 4 << 20;
  uint64_t segment_bytes_network = 4 << 20;
  uint64_t segment_bytes_stages = 512 << 10;  // between nodes, where stages work at the same time
  uint64_t segment_bytes_rank = 4 << 20;      // ... at most, of each rank's share of a sum
  uint64_t segment_bytes_trees_least = 16 << 10;
  uint64_t segment_bytes_trees = 128 << 10;  // a segment has to get to the leaves

  bool reads_in_place(AlgorithmRow::Result result, uint64_t bytes) const {
    return bytes >= (is_scattered(result) ? one_copy_bytes_scattered : one_copy_bytes);
  }
};

// Of the usual links of each kind, and of those that are faster or slower.
Tuning socket_tuning();
Tuning tuning_for(const LinkModel& links);

// RDMACOLL_ALLREDUCE_ALGORITHM: by growing size, the last one for the rest.
struct Forced {
  std::optional<Algorithm> algorithm;  // none: as if nothing were forced
  uint64_t bytes_max = UINT64_MAX;

  bool operator==(const Forced&) const = default;
};

// How ranks are spread over nodes.
struct Spread {
  bool shares_nodes = false;         // several nodes, and more ranks than nodes
  int ranks_of_node = 1;             // the most
  bool is_canonical_by_node = true;  // two_level adds in canonical order
  // Nodes are even in number, and recursive doubling crosses them in no more rounds than they alone
  // would need.
  bool is_doubled_by_node = false;
  bool is_doubled_the_long_way = false;  // ... in more than two_level does, of six ranks or more

  Spread() = default;
  explicit Spread(const Shape& shape);
};

struct Facts {
  int ranks = 1;
  bool one_node = true;  // everybody views everybody's memory
  uint64_t bytes = 0;
  bool wide_sums = false;  // partial sums are twice as long as what is summed
  bool canonical = false;
  std::span<const Forced> forced = {};
  std::optional<uint64_t> segment_bytes;  // RDMACOLL_SEGMENT_BYTES
  Spread spread = {};
  bool is_even = false;  // exchange: all parts of all ranks have one size
  int servers = 0;       // beside the ranks: they make the sums of all of them
};

struct Choice {
  Algorithm algorithm = Algorithm::none;
  uint64_t segment_bytes = 0;
  std::string_view reason = "there is nothing to move";
};

// Among the algorithms with this result.
Choice choose(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts);

// How large a segment is with this algorithm.
uint64_t segment_bytes_of(Algorithm algorithm, const Tuning& tuning, const Facts& facts);

// Whether the choice adds in canonical order here.
bool adds_in_canonical_order(const Choice& choice, const Facts& facts);

}  // namespace rdmacoll
