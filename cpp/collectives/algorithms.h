// Every algorithm: a pure function from a place in the world to a schedule. One file each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "collectives/schedule.h"

namespace rdmacoll {

// Values are on the wire: append only.
enum class Algorithm : uint8_t {
  none = 0,  // no data moves: barrier, empty tensors
  ring = 1,
  direct = 2,
  recursive_doubling = 3,
  binomial_broadcast = 4,
  ring_allgather = 5,
  halving_doubling = 6,
  two_level = 7,
  pipelined_tree = 8,
  doubling_allgather = 9,
  ring_reduce_scatter = 10,
  direct_reduce_scatter = 11,
  pairwise_alltoall = 12,
  binomial_reduce = 13,
  direct_reduce = 14,
  direct_gather = 15,
  direct_scatter = 16,
  bruck_alltoall = 17,
  parameter_server = 18,
  one_shot = 19,
};

// Whether a number from the wire is one of them.
bool is_known(Algorithm algorithm);
std::string_view name_of(Algorithm algorithm);
std::optional<Algorithm> algorithm_from(std::string_view name);

struct Shape {
  int ranks = 1;
  int rank = 0;
  int root = 0;            // broadcast, reduce, gather, scatter
  bool prescaled = false;  // sums: every input is multiplied first
  // The node of each rank, and of each server where there are any; empty: all have one of their
  // own. Whoever makes a shape owns it.
  std::span<const int> nodes = {};
  // Beside the ranks, and numbered after them: they have no data, and sum that of the ranks. `rank`
  // may be one of them.
  int servers = 0;
  // The NUMA node of each rank and server, in its node; -1, and empty: unknown. As `nodes`.
  std::span<const int> numa_nodes = {};
  bool shares_output = false;  // ranks and servers have the same output memory
  bool wide_sums = false;      // 16-bit floats: sums stay in float32 until they are whole

  int node_of(int which) const { return nodes.empty() ? which : nodes[which]; }
  int numa_node_of(int which) const { return numa_nodes.empty() ? -1 : numa_nodes[which]; }
  int members() const { return ranks + servers; }
  bool operator==(const Shape& other) const;
};

// So many nodes of consecutive ranks, as even as can be, the larger ones first: for Shape::nodes.
std::vector<int> even_nodes(int ranks, int nodes);

// Allreduce. Segment cut in `ranks` parts; 2(p-1) rounds with the neighbours only.
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
Schedule ring_allreduce(const Shape& shape);

// Allreduce. Rank k collects part k from everybody, reduces once in canonical order, and sends the
// sum to everybody: two rounds of p-1 messages each.
Schedule direct_allreduce(const Shape& shape);

// Allreduce. Everybody sends all it has to everybody, and adds all of it in canonical order: one
// round, of p-1 messages.
Schedule one_shot_allreduce(const Shape& shape);

// Allreduce. ceil(log2 p) rounds of the whole segment, for any p, in canonical order: blocks of
// ranks double, and an incomplete last block serves several partners instead of folding in first.
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
Schedule recursive_doubling_allreduce(const Shape& shape);
// From whom a rank gets the other half's sum where blocks of so many are joined, or -1.
int doubling_partner(int ranks, int block, int rank);

// Allreduce. Segment cut in as many parts as the largest power of two within p; reduce-scatter by
// halving the vector, allgather by doubling it: 2 log2 p rounds, for any p, in canonical order.
// Rabenseifner, "Optimization of collective reduction operations", 2004; the blocks for other
// numbers than powers of two: Rabenseifner and Traeff, "More efficient reduction algorithms for
// non-power-of-two number of processors in message-passing parallel systems", 2004.
Schedule halving_doubling_allreduce(const Shape& shape);

// Allreduce where nodes have several ranks. Those of a node sum what each of them owns, the owners
// of a share in all nodes sum by halving and doubling, and the result goes round in the nodes:
// between nodes moves no more than if each had one rank, and all ranks of a node take part in that.
// Canonical where nodes are consecutive ranks and as many as a power of two (the last one may be
// smaller). The scheme of Jia et al., "Highly scalable deep learning training system with
// mixed-precision", 2018, with shares so that nodes of different sizes have nobody who carries it
// all.
Schedule two_level_allreduce(const Shape& shape);

// Allreduce over parameter servers. Server k collects part k from every rank, reduces once in
// canonical order, and sends the sum to every rank. Without servers beside the ranks each rank
// serves a part, which is direct_allreduce. Li et al., "Scaling distributed machine learning with
// the parameter server", 2014.
Schedule parameter_server_allreduce(const Shape& shape);

// Broadcast of the whole segment along a binomial tree from `root`; segments follow each other.
Schedule binomial_broadcast(const Shape& shape);

// Broadcast of large messages: one half of each segment goes along one binary tree, the other half
// along another, in which inner nodes of the first are leaves, so that nobody but the root sends
// more than it receives while segments follow each other, where the root of a binomial tree sends
// everything log2 p times.
// Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
// scan", 2009.
Schedule pipelined_tree_broadcast(const Shape& shape);

// Allgather. Part k is the contribution of rank k (parts may have different sizes).
Schedule ring_allgather(const Shape& shape);

// Allgather. ceil(log2 p) rounds for any p: blocks of ranks double as in recursive doubling, and
// what a block has lies together. Thakur, Rabenseifner and Gropp, 2005.
Schedule doubling_allgather(const Shape& shape);
// Reduce-scatter. Rank k ends with the sum of part k (parts may have different sizes): the first
// half of the allreduce of the same name.
Schedule ring_reduce_scatter(const Shape& shape);
Schedule direct_reduce_scatter(const Shape& shape);

// All-to-all. Parts 0 to p-1 are what this rank gives to each rank, parts p to 2p-1 what it gets.
// In round d everybody sends to the rank d above, so that no rank is hit by all others at once.
Schedule pairwise_alltoall(const Shape& shape);

// All-to-all of parts of one size, small: ceil(log2 p) messages of half of them each, for any p,
// where each part goes through as many ranks as its distance has bits. Beyond the 2p parts there
// are those that are on their way. Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms
// for all-to-all communications in multiport message-passing systems", 1997.
Schedule bruck_alltoall(const Shape& shape);

// Reduce to `root`. ceil(log2 p) rounds of the whole segment along the canonical tree, where the
// root takes the place of the first rank in each block that it belongs to.
Schedule binomial_reduce(const Shape& shape);

// Reduce to `root`, large: direct reduce-scatter, and the sums go to the root.
Schedule direct_reduce(const Shape& shape);

// Gather and scatter. Part k is rank k's (parts may have different sizes); one message each.
Schedule direct_gather(const Shape& shape);
Schedule direct_scatter(const Shape& shape);

Schedule make_schedule(Algorithm algorithm, const Shape& shape);

// One line each: the name, the function, and what it needs. Forcing, choosing, verifying and the
// tests go through this table.
struct AlgorithmRow {
  Algorithm algorithm;
  std::string_view name;
  Schedule (*make)(const Shape& shape);
  // What the ranks end with: everybody everything (sum, root_value, concatenation), each its own
  // part (own_sum, own_value: of the root's), the root alone (root_sum, root_concatenation), or
  // what each has for each (exchange).
  enum class Result : uint8_t {
    sum,
    root_value,
    concatenation,
    own_sum,
    own_value,
    root_sum,
    root_concatenation,
    exchange
  } result;
  bool (*is_canonical)(const Shape& shape);  // evaluates the canonical tree
  // Looks at Shape::nodes for more than the order of a ring, which is one anyhow.
  bool by_node = false;
  bool by_servers = false;  // ... at Shape::servers, which the others know nothing of
};
bool is_sum(AlgorithmRow::Result result);
bool has_root(AlgorithmRow::Result result);
bool is_scattered(AlgorithmRow::Result result);  // each byte goes to one rank
std::span<const AlgorithmRow> algorithm_table();
const AlgorithmRow* row_of(Algorithm algorithm);  // null: it is none
bool is_canonical(Algorithm algorithm, const Shape& shape);

}  // namespace rdmacoll
