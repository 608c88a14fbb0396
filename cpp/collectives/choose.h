// Chooses the algorithm and the segment size. Pure. Only the root of the control tree calls it,
// with rank 0's numbers: ranks that chose for themselves could choose differently.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/copy_costs.h"
#include "base/link_model.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// The memory of a node, and cuts in bytes between nodes. The cuts come from the cost model
// (`rdmacoll plan` shows it), until a measurement of the fabric replaces them. The defaults are for
// RDMA of 100 Gbit/s, socket_tuning() is for TCP of 10 Gbit/s.
struct Tuning {
  // Formulas: choices within a node follow from `links.memory`, and choices between nodes of one
  // rank each from the other numbers, unless they are sums. The cuts are for all other choices.
  LinkModel links = kNicLinks;
  uint64_t doubling_bytes_network = 8 << 10;   // recursive doubling up to here, between nodes
  uint64_t doubling_bytes_uneven = 2 << 10;    // ... if some ranks serve several partners
  uint64_t doubling_bytes_long_way = 2 << 10;  // ... if it crosses nodes more often than it must
  uint64_t doubling_bytes_pair = 16 << 10;     // ... between two ranks, which send nothing twice
  uint64_t doubling_bytes_port = 32 << 10;     // ... of all ranks of a node, which share a port
  int direct_ranks_network = 8;                // above, p-1 messages each are too many
  uint64_t direct_bytes_pair = 1 << 20;        // ... unless each pair has at least this much
  uint64_t direct_bytes_network = 1 << 20;     // above, a ring is faster: it adds while it moves
  int direct_ranks_at_once = 8;                // above, too many ranks send to one port at once
  uint64_t direct_bytes_at_once = 1 << 20;     // ... unless the message is no longer than this
  uint64_t direct_bytes_port = 256 << 10;      // direct for three ranks on two nodes, up to here
  // 16-bit floats, whose partial sums are twice as long. Up to these numbers of ranks in shared
  // nodes, each sum is made at one place: in an allreduce, and in a reduce-scatter.
  int wide_ranks_port = 7;
  int wide_ranks_scattered = 8;
  uint64_t halving_bytes_network = 4 << 20;    // halving up to here, if direct has too many ranks
  int ring_ranks_network = 48;                 // above, halving for all sizes (`sim scale`)
  int ring_ranks_uneven = 64;                  // ... if some ranks serve several partners
  uint64_t binomial_bytes_network = 24 << 10;  // broadcast: above, the two trees
  uint64_t binomial_bytes_pair = 64 << 10;     // ... between two ranks, where the trees are a chain
  // Reduce-scatter is a ring, which adds while it moves, above the larger of the first two sizes.
  // If ranks share ports, the third size counts.
  uint64_t scatter_bytes_network = 512 << 10;
  uint64_t scatter_bytes_rank = 64 << 10;   // times the number of ranks
  uint64_t scatter_bytes_port = 300 << 10;  // divided by the square of a node's ranks
  int scatter_ranks_port = 8;  // ranks of a node: above, a ring sends less through its port
  // A reduce runs along a tree up to the larger of these two sizes.
  uint64_t reduce_bytes_network = 8 << 10;
  uint64_t reduce_bytes_rank = 3 << 9;    // times the number of ranks
  bool reduces_by_node = false;           // ... or at all sizes, if nodes have several ranks
  uint64_t reduce_bytes_wide = 32 << 10;  // ... or up to here if partial sums are wide
  int reduce_ranks_wide = 32;             // ... and there are no more ranks than this
  // An allgather runs by doubling up to one of these sizes.
  uint64_t gather_bytes_port = 32 << 10;  // in total, if ranks share ports
  uint64_t gather_bytes_long_way = 16
                                   << 10;  // in total, if doubling crosses nodes needlessly often
  // An alltoall runs by Bruck's algorithm from this number of ranks on, up to these sizes.
  int bruck_ranks_network = 12;
  uint64_t bruck_bytes_port = 512;  // for each pair, if ranks share ports
  // Within a node callers' memory is packed into shared memory, and is still in the cache when the
  // peer reads it. Two such copies take less time than one copy by the kernel, which reads callers'
  // memory in place. The exceptions are large scattered data, and exchanges that fit no cache
  // (AMD EPYC, 2026-11-28: docs/measurements/2026-11-28-other-collectives.md). Large arrays of
  // numpy lie in huge pages, of which the root knows nothing. So these two limits are no formulas.
  uint64_t one_copy_bytes = UINT64_MAX;
  uint64_t one_copy_bytes_scattered = 4 << 20;
  uint64_t one_copy_bytes_exchange = 32 << 20;
  // From here on the root tries several algorithms for a sum within a node, and both ways to move
  // large data. Sums below the first size take less time than what a plan saves them.
  uint64_t trial_bytes = 16 << 10;
  uint64_t trial_bytes_in_place = 1 << 20;
  int trial_row = 8;  // the number of sums in a row of trials
  // The least time of so many planned sums tells whether times have changed (RDMACOLL_TUNE=online).
  // Trials take place again after so many sums of one size, so that they cost little.
  int drift_window = 32;
  uint64_t drift_sums = 3072;
  uint64_t segment_bytes_shared = 4 << 20;
  // NICs access tensors on GPUs themselves if the batch has at least so many bytes for each of its
  // tensors. Many smaller ones cost them more than copies. A few beside large ones do not.
  uint64_t gpu_direct_bytes = 32 << 10;
  // Limits for data that is staged from and to GPUs whose copies were measured.
  uint64_t segment_bytes_staged_least = 256 << 10;
  uint64_t segment_bytes_staged = 16 << 20;
  // Each step of a segment on GPUs costs the start of a kernel and its way to the peer.
  uint64_t segment_bytes_gpus = 64 << 20;
  uint64_t segment_bytes_network = 4 << 20;
  uint64_t segment_bytes_stages = 512 << 10;  // between nodes, with stages that overlap
  uint64_t segment_bytes_rank = 4 << 20;      // ... at most, for each rank's share of a sum
  uint64_t segment_bytes_trees_least = 16 << 10;
  uint64_t segment_bytes_trees = 128 << 10;  // at most: a segment has to reach the leaves

  bool reads_in_place(AlgorithmRow::Result result, uint64_t bytes) const {
    if (result == AlgorithmRow::Result::exchange) return bytes >= one_copy_bytes_exchange;
    return bytes >= (is_scattered(result) ? one_copy_bytes_scattered : one_copy_bytes);
  }
};

// The cuts for TCP links of the usual rate, and for links of any kind and rate.
Tuning socket_tuning();
Tuning tuning_for(const LinkModel& links);

// One range of RDMACOLL_ALLREDUCE_ALGORITHM. Ranges grow in size, and the last one is for the rest.
struct Forced {
  std::optional<Algorithm> algorithm;  // none: in this range nothing is forced
  uint64_t bytes_max = UINT64_MAX;

  bool operator==(const Forced&) const = default;
};

// How ranks are spread over nodes.
struct Spread {
  bool shares_nodes = false;         // several nodes, and more ranks than nodes
  int ranks_of_node = 1;             // the largest number in one node
  bool is_canonical_by_node = true;  // sums of whole nodes are nodes of the canonical tree
  // The number of nodes is even, and recursive doubling crosses nodes in no more rounds than one
  // rank on each node would need.
  bool is_doubled_by_node = false;
  // Six ranks or more, and more crossings than an algorithm by nodes has.
  bool is_doubled_the_long_way = false;

  Spread() = default;
  explicit Spread(const Shape& shape);
};

// Whether each node sums one node of the canonical tree, which is cut at powers of two.
bool are_nodes_canonical(const Shape& shape);

struct Facts {
  int ranks = 1;
  bool one_node = true;  // all ranks see each other's memory
  uint64_t bytes = 0;
  bool wide_sums = false;  // partial sums are twice as long as contributions
  bool canonical = false;
  std::span<const Forced> forced = {};
  std::optional<uint64_t> segment_bytes;  // RDMACOLL_SEGMENT_BYTES
  Spread spread = {};
  bool is_even = false;        // exchange: all parts of all ranks have one size
  int servers = 0;             // separate servers, which make all sums
  bool on_gpus = false;        // the ranks of the node read and sum each other's data on GPUs
  bool stages_gpus = false;    // tensors on GPUs are copied through host memory
  CopyCosts gpu_copies = {};   // for that, if they were measured
  bool in_place = false;       // peers read the callers' memory
  bool shares_result = false;  // ranks of the node share the result, if it has one writer
};

struct Choice {
  Algorithm algorithm = Algorithm::none;
  uint64_t segment_bytes = 0;
  std::string_view reason = "there is nothing to move";
};

// Chooses among the algorithms with this result, unless one is forced. Within a node, and between
// nodes of one rank each for what is no sum: the cheapest one. Otherwise: the first row of the
// table that prefers these facts.
Choice choose(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts);

// Within a node: the other algorithms that may be as fast as the choice, the cheapest first. They
// add in canonical order. None if an algorithm is forced.
std::vector<Choice> rivals_in_node(const Choice& choice, const Tuning& tuning, const Facts& facts);

// Within a node: the closed form of an algorithm's cost in microseconds, or infinity: it only runs
// if it is forced.
double cost_in_node(const AlgorithmRow& row, const Tuning& tuning, const Facts& facts);
// The same between nodes of one rank each, for what is no sum.
double cost_between_nodes(const AlgorithmRow& row, const Tuning& tuning, const Facts& facts);
// Whether choices follow the formulas here. Otherwise they follow the ranges.
bool has_formulas(AlgorithmRow::Result result, const Facts& facts);
// The formula that counts here. None: the algorithm is no candidate, or ranges decide.
std::optional<double> formula_us(const AlgorithmRow& row, const Tuning& tuning, const Facts& facts);

// Bytes of a segment with this algorithm.
uint64_t segment_bytes_of(Algorithm algorithm, const Tuning& tuning, const Facts& facts);

// Whether the choice adds in canonical order here.
bool adds_in_canonical_order(const Choice& choice, const Facts& facts);

}  // namespace rdmacoll
