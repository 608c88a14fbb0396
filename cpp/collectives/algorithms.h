// Every algorithm is a pure function from a rank's shape of the world to a schedule. Each has a
// file, which ends with its row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "collectives/schedule.h"

namespace rdmacoll {

// The number of an algorithm on the wire. Each row has its own. A number is never used again.
enum class Algorithm : uint8_t {
  none = 0,  // no data moves: barrier, empty tensors
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

// How the data of a batch moves: alike on all ranks.
struct Movement {
  Algorithm algorithm = Algorithm::none;
  uint64_t segment_bytes = 0;
  bool in_place = false;  // peers may read the callers' memory, where they can

  bool operator==(const Movement&) const = default;
};

// The schedule of shape.rank. It is empty for Algorithm::none.
Schedule make_schedule(Algorithm algorithm, const Shape& shape);

// How long the segments of an operation are between nodes (segment_bytes_of).
enum class Segments : uint8_t {
  whole,   // nothing overlaps: the usual length
  stages,  // short ones, since the stages of one overlap those of the next
  shares,  // at most a length for each rank's share
  tree,    // short ones, since a segment has to reach the leaves
};

struct Facts;
struct Tuning;
class InNode;
class Traffic;

// Memory in the pool for a segment, in segments.
int memory_of_shares(const Shape& shape);    // a rank's data, its sums, and shares of peers
int memory_of_rounds(const Shape& shape);    // in each round one to receive and one to publish
int memory_of_all_data(const Shape& shape);  // the data of all ranks, and the result

// One row for each algorithm: its name, its function, its needs and its costs. It stands at the end
// of the algorithm's file. Commands, settings, choose(), verify() and tests know an algorithm by
// its row alone.
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
  // Within a node: the closed form of its cost in microseconds. choose() takes the cheapest
  // algorithm there. The formula leaves out no more than a tenth of cost_of(), which executes the
  // schedules. Such an algorithm adds in canonical order within any node. Null: it only runs there
  // if it is forced.
  double (*cost_in_node)(const InNode& node) = nullptr;
  // Between nodes: tells its copies, sums and messages, of which its cost follows. Null: it only
  // runs there if it is forced.
  void (*traffic)(Traffic& traffic) = nullptr;
  // Why it is no candidate here, although it would be the cheapest by the model: a measurement
  // contradicts that, or a law of another part of the engine. "": there is no reason. Null: never.
  std::string_view (*correction)(const Tuning& tuning, const Facts& facts) = nullptr;
  // Whether it adds in the order of the canonical tree. Null: for every shape.
  bool (*canonical_for)(const Shape& shape) = nullptr;
  std::string_view never_canonical = "";  // a clause: why it has no canonical order in any shape
  Segments segments = Segments::whole;
  // The most memory that it needs in the pool for each segment in flight, in segments.
  int (*memory)(const Shape& shape) = memory_of_shares;
  // Uses Shape::nodes. The order of a ring does not count, since any order makes a ring.
  bool by_node = false;
  bool by_servers = false;            // uses Shape::servers; no other algorithm does
  bool needs_even = false;            // exchange: all parts have one size
  bool has_one_writer = false;        // one rank or server writes each part of the result, once
  bool for_little = false;            // unless forced, it is chosen for little data only
  std::string_view other_names = "";  // its names in other systems, separated by spaces

  bool is_canonical(const Shape& shape) const {
    return never_canonical.empty() && (canonical_for == nullptr || canonical_for(shape));
  }
  bool can_be_forced() const { return result == Result::sum && !by_servers; }
};
bool is_sum(AlgorithmRow::Result result);
bool has_root(AlgorithmRow::Result result);
// Each byte of the root goes to one rank.
bool is_scattered(AlgorithmRow::Result result);
std::span<const AlgorithmRow> algorithm_table();
const AlgorithmRow* row_of(Algorithm algorithm);  // null: the number is not in the table
// The longest segment whose memory fits into `room` bytes of the pool. Algorithm::none needs no
// memory.
uint64_t segment_bytes_that_fit(Algorithm algorithm, const Shape& shape, uint64_t room);

bool is_by_servers(Algorithm algorithm);
bool needs_even(Algorithm algorithm);
// The clause of the row with this name. "": it has a canonical order, or there is no such row.
std::string_view never_canonical(std::string_view name);
// The sum that ranks without servers can share: it has one writer for each part.
const AlgorithmRow& shareable_sum();
// Whether the algorithm adds in canonical order in this shape.
bool is_canonical(Algorithm algorithm, const Shape& shape);
// [{"name", "result", "by_node", "by_servers", "can_be_forced", "between_nodes",
// "never_canonical"}], in the order of the table.
std::string algorithms_json();

}  // namespace rdmacoll
