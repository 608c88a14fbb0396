#include "collectives/algorithms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/status.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

// One row for each algorithm: the name of its AlgorithmRow without "_row". Among those with one
// result the cheapest one runs, and the first one of several with the same cost.
#define RDMACOLL_ALGORITHMS(ROW) \
  ROW(parameter_server)          \
  ROW(recursive_doubling)        \
  ROW(one_shot)                  \
  ROW(leaders)                   \
  ROW(two_level)                 \
  ROW(direct)                    \
  ROW(write_back)                \
  ROW(halving_doubling)          \
  ROW(ring)                      \
  ROW(pipelined_tree)            \
  ROW(binomial_broadcast)        \
  ROW(flat_broadcast)            \
  ROW(doubling_allgather)        \
  ROW(ring_allgather)            \
  ROW(direct_allgather)          \
  ROW(direct_reduce_scatter)     \
  ROW(ring_reduce_scatter)       \
  ROW(bruck_alltoall)            \
  ROW(pairwise_alltoall)         \
  ROW(binomial_reduce)           \
  ROW(flat_reduce)               \
  ROW(direct_reduce)             \
  ROW(direct_gather)             \
  ROW(direct_scatter)

constexpr std::string_view text_of(Result result) {
  switch (result) {
    case Result::sum:
      return "sum";
    case Result::root_value:
      return "root_value";
    case Result::concatenation:
      return "concatenation";
    case Result::own_sum:
      return "own_sum";
    case Result::own_value:
      return "own_value";
    case Result::root_sum:
      return "root_sum";
    case Result::root_concatenation:
      return "root_concatenation";
    case Result::exchange:
      return "exchange";
  }
  return "";
}

}  // namespace

#define RDMACOLL_DECLARE_ROW(name) extern const AlgorithmRow name##_row;
RDMACOLL_ALGORITHMS(RDMACOLL_DECLARE_ROW)

std::span<const AlgorithmRow> algorithm_table() {
#define RDMACOLL_LIST_ROW(name) name##_row,
  static const std::array kTable{RDMACOLL_ALGORITHMS(RDMACOLL_LIST_ROW)};
  return kTable;
}

int memory_of_shares(const Shape&) { return 3; }
int memory_of_rounds(const Shape& shape) {
  return 2 * std::bit_width(static_cast<unsigned>(shape.ranks - 1)) + 2;
}
int memory_of_all_data(const Shape& shape) { return shape.ranks + 1; }

uint64_t segment_bytes_that_fit(Algorithm algorithm, const Shape& shape, uint64_t room) {
  constexpr uint64_t kLeast = 64;
  const AlgorithmRow* row = row_of(algorithm);
  if (row == nullptr) return UINT64_MAX;
  return std::max(room / static_cast<uint64_t>(row->memory(shape)), kLeast);
}

const AlgorithmRow* row_of(Algorithm algorithm) {
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.algorithm == algorithm) return &row;
  }
  return nullptr;
}

bool is_by_servers(Algorithm algorithm) {
  const AlgorithmRow* row = row_of(algorithm);
  return row != nullptr && row->by_servers;
}

bool needs_even(Algorithm algorithm) {
  const AlgorithmRow* row = row_of(algorithm);
  return row != nullptr && row->needs_even;
}

std::string_view never_canonical(std::string_view name) {
  const std::optional<Algorithm> algorithm = algorithm_from(name);
  return algorithm ? row_of(*algorithm)->never_canonical : "";
}

const AlgorithmRow& shareable_sum() {
  const auto rows = algorithm_table();
  return *std::ranges::find_if(
      rows, [](const AlgorithmRow& row) { return row.can_be_forced() && row.has_one_writer; });
}

bool is_sum(Result result) {
  return result == Result::sum || result == Result::own_sum || result == Result::root_sum;
}

bool has_root(Result result) {
  return result == Result::root_value || result == Result::own_value ||
         result == Result::root_sum || result == Result::root_concatenation;
}

bool is_scattered(Result result) { return result == Result::own_value; }

bool is_known(Algorithm algorithm) {
  return algorithm == Algorithm::none || row_of(algorithm) != nullptr;
}

bool Shape::operator==(const Shape& other) const {
  return ranks == other.ranks && rank == other.rank && root == other.root &&
         prescaled == other.prescaled && servers == other.servers &&
         shares_output == other.shares_output && wide_sums == other.wide_sums &&
         std::ranges::equal(nodes, other.nodes) && std::ranges::equal(numa_nodes, other.numa_nodes);
}

std::vector<int> even_nodes(int ranks, int nodes) {
  std::vector<int> node_of;
  for (int node = 0; node < nodes; ++node) {
    const int size = ranks / nodes + (node < ranks % nodes ? 1 : 0);
    node_of.insert(node_of.end(), static_cast<std::size_t>(size), node);
  }
  return node_of;
}

std::string_view name_of(Algorithm algorithm) {
  const AlgorithmRow* row = row_of(algorithm);
  return row == nullptr ? "none" : row->name;
}

std::optional<Algorithm> algorithm_from(std::string_view name) {
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.name == name) return row.algorithm;
  }
  return std::nullopt;
}

bool is_canonical(Algorithm algorithm, const Shape& shape) {
  const AlgorithmRow* row = row_of(algorithm);
  return row == nullptr || row->is_canonical(shape);
}

Schedule make_schedule(Algorithm algorithm, const Shape& shape) {
  if (const AlgorithmRow* row = row_of(algorithm)) return row->make(shape);
  RC_ASSERT(algorithm == Algorithm::none);
  Schedule empty;
  empty.ranks = shape.ranks;
  empty.rank = shape.rank;
  return empty;
}

std::string algorithms_json() {
  const auto text = [](bool value) { return value ? "true" : "false"; };
  std::vector<std::string> items;
  for (const AlgorithmRow& row : algorithm_table()) {
    items.push_back(
        cat("{\"name\": ", json_quote(row.name), ", \"result\": ", json_quote(text_of(row.result)),
            ", \"by_node\": ", text(row.by_node), ", \"by_servers\": ", text(row.by_servers),
            ", \"can_be_forced\": ", text(row.can_be_forced()),
            ", \"between_nodes\": ", text(row.traffic != nullptr),
            ", \"never_canonical\": ", json_quote(row.never_canonical), "}"));
  }
  return cat("[", join(items, ", "), "]");
}

}  // namespace rdmacoll
