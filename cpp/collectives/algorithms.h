// Every algorithm is a pure function from a rank's shape of the world to a schedule. One file each.
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

// Whether `algorithm`, a number from the wire, is in the table or none.
bool is_known(Algorithm algorithm);
std::string_view name_of(Algorithm algorithm);
std::optional<Algorithm> algorithm_from(std::string_view name);

struct Shape {
  int ranks = 1;
  int rank = 0;
  int root = 0;            // broadcast, reduce, gather, scatter
  bool prescaled = false;  // sums: every input is scaled first
  // The node of each rank, and of each server if there are servers. Empty: each has a node of its
  // own. The creator of a shape owns the memory.
  std::span<const int> nodes = {};
  // Servers are numbered after the ranks. They have no data, and sum that of the ranks. `rank` may
  // be a server.
  int servers = 0;
  // The NUMA node of each rank and server within its node. -1, and an empty list: unknown. Owned as
  // `nodes` is.
  std::span<const int> numa_nodes = {};
  bool shares_output = false;  // ranks and servers have the same output memory
  bool wide_sums = false;      // 16-bit floats: sums stay in float32 until they are whole

  int node_of(int which) const { return nodes.empty() ? which : nodes[which]; }
  int numa_node_of(int which) const { return numa_nodes.empty() ? -1 : numa_nodes[which]; }
  int members() const { return ranks + servers; }
  bool operator==(const Shape& other) const;
};

// Spreads consecutive ranks over `nodes` nodes as evenly as possible, larger nodes first. For
// Shape::nodes.
std::vector<int> even_nodes(int ranks, int nodes);

// Allreduce. The segment is cut in `ranks` parts; 2(p-1) rounds with the neighbours only.
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
Schedule ring_allreduce(const Shape& shape);

// Allreduce. Rank k collects part k from all ranks, reduces once in canonical order, and sends the
// sum to all ranks: two rounds of p-1 messages each.
Schedule direct_allreduce(const Shape& shape);

// Allreduce. Each rank sends all its data to all ranks, and adds all data in canonical order: one
// round of p-1 messages.
Schedule one_shot_allreduce(const Shape& shape);

// Allreduce. ceil(log2 p) rounds of the whole segment, for any p, in canonical order. Blocks of
// ranks double, and an incomplete last block serves several partners instead of folding in first.
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
Schedule recursive_doubling_allreduce(const Shape& shape);
// The rank that sends the other half's sum to `rank` when blocks of `block` ranks are joined, or
// -1.
int doubling_partner(int ranks, int block, int rank);

// Allreduce. The segment is cut in as many parts as the largest power of two within p.
// Reduce-scatter halves the vector and allgather doubles it: 2 log2 p rounds, for any p, in
// canonical order. Rabenseifner, "Optimization of collective reduction operations", 2004. Blocks
// for other numbers than powers of two: Rabenseifner and Traeff, "More efficient reduction
// algorithms for non-power-of-two number of processors in message-passing parallel systems", 2004.
Schedule halving_doubling_allreduce(const Shape& shape);

// Allreduce for nodes with several ranks. The ranks of a node first sum the shares that each of
// them owns. The owners of a share in all nodes then sum it by halving and doubling, and the ranks
// of each node exchange the results. Between nodes no more moves than if each node had one rank,
// and all ranks of a node take part. Canonical if each node has consecutive ranks, a power of two
// of them (the last node may be smaller).
//
// After Jia et al., "Highly scalable deep learning training system with mixed-precision", 2018.
// Here ranks own shares, so that no rank carries everything if nodes have different sizes.
Schedule two_level_allreduce(const Shape& shape);

// Allreduce over parameter servers. Server k collects part k from every rank, reduces once in
// canonical order, and sends the sum to every rank. Without separate servers each rank serves a
// part, which is direct_allreduce. Li et al., "Scaling distributed machine learning with the
// parameter server", 2014.
Schedule parameter_server_allreduce(const Shape& shape);

// Broadcast of the whole segment along a binomial tree from `root`; segments follow each other.
Schedule binomial_broadcast(const Shape& shape);

// Broadcast of large messages. Each half of a segment goes along its own binary tree, and the inner
// nodes of the first tree are leaves of the second. While segments follow each other, only the root
// sends more than it receives. The root of a binomial tree sends everything log2 p times. Sanders,
// Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
Schedule pipelined_tree_broadcast(const Shape& shape);

// Allgather. Part k is the contribution of rank k (parts may have different sizes).
Schedule ring_allgather(const Shape& shape);

// Allgather. ceil(log2 p) rounds for any p. Blocks of ranks double as in recursive doubling, and
// the data of a block is contiguous. Thakur, Rabenseifner and Gropp, 2005.
Schedule doubling_allgather(const Shape& shape);
// Reduce-scatter. Rank k ends with the sum of part k (parts may have different sizes). Each is the
// first half of the allreduce of the same name.
Schedule ring_reduce_scatter(const Shape& shape);
Schedule direct_reduce_scatter(const Shape& shape);

// All-to-all. Parts 0 to p-1 go from this rank to each rank, parts p to 2p-1 come to it. In round d
// each rank sends to the rank d above, so that no rank is hit by all others at once.
Schedule pairwise_alltoall(const Shape& shape);

// All-to-all of small parts of one size, for any p: ceil(log2 p) messages of half of the parts
// each. Each part goes through as many ranks as its distance has bits. The parts beyond the first
// 2p are in transit. Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997.
Schedule bruck_alltoall(const Shape& shape);

// Reduce to `root`. ceil(log2 p) rounds of the whole segment along the canonical tree. The root
// takes the place of the first rank in each block that it belongs to.
Schedule binomial_reduce(const Shape& shape);

// Reduce of large messages to `root`: direct reduce-scatter, then each rank sends its sum to the
// root.
Schedule direct_reduce(const Shape& shape);

// Gather and scatter. Part k belongs to rank k (parts may have different sizes); one message each.
Schedule direct_gather(const Shape& shape);
Schedule direct_scatter(const Shape& shape);

// The schedule of shape.rank. It is empty for Algorithm::none.
Schedule make_schedule(Algorithm algorithm, const Shape& shape);

// One row for each algorithm: its name, its function and its needs. The commands, choose(),
// verify() and the tests take them from this table.
struct AlgorithmRow {
  Algorithm algorithm;
  std::string_view name;
  Schedule (*make)(const Shape& shape);
  // The result at the ranks. Every rank has everything: sum, root_value, concatenation. Each rank
  // has its own part: own_sum, and own_value (of the root's data). The root alone has it: root_sum,
  // root_concatenation. Each rank has a part from each rank: exchange.
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
  bool (*is_canonical)(const Shape& shape);  // adds in the order of the canonical tree
  // Uses Shape::nodes. The order of a ring does not count, since any order makes a ring.
  bool by_node = false;
  bool by_servers = false;  // uses Shape::servers; no other algorithm does
};
bool is_sum(AlgorithmRow::Result result);
bool has_root(AlgorithmRow::Result result);
bool is_scattered(AlgorithmRow::Result result);  // each byte goes to one rank
std::span<const AlgorithmRow> algorithm_table();
const AlgorithmRow* row_of(Algorithm algorithm);  // null: the number is not in the table
// Whether the algorithm adds in canonical order in this shape.
bool is_canonical(Algorithm algorithm, const Shape& shape);

}  // namespace rdmacoll
