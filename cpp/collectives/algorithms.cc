#include "collectives/algorithms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <set>

#include "base/status.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

bool always(const Shape&) { return true; }
bool never(const Shape&) { return false; }

// Whether each node sums one node of the canonical tree, which is cut at powers of two.
bool is_by_powers_of_two(const Shape& shape) {
  int size = 0;  // ranks of the first node
  while (size < shape.ranks && shape.node_of(size) == shape.node_of(0)) ++size;
  std::set<int> begun;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const bool begins = rank == 0 || shape.node_of(rank) != shape.node_of(rank - 1);
    if (begins != (rank % size == 0)) return false;
    if (begins && !begun.insert(shape.node_of(rank)).second) return false;  // the node is split
  }
  return std::has_single_bit(static_cast<unsigned>(size)) || begun.size() == 1;
}

constexpr std::array kTable{
    AlgorithmRow{Algorithm::ring, "ring", ring_allreduce, Result::sum, never},
    AlgorithmRow{Algorithm::direct, "direct", direct_allreduce, Result::sum, always},
    AlgorithmRow{Algorithm::one_shot, "one_shot", one_shot_allreduce, Result::sum, always},
    AlgorithmRow{Algorithm::recursive_doubling, "recursive_doubling", recursive_doubling_allreduce,
                 Result::sum, always},
    AlgorithmRow{Algorithm::halving_doubling, "halving_doubling", halving_doubling_allreduce,
                 Result::sum, always},
    AlgorithmRow{Algorithm::two_level, "two_level", two_level_allreduce, Result::sum,
                 is_by_powers_of_two, true},
    AlgorithmRow{Algorithm::parameter_server, "parameter_server", parameter_server_allreduce,
                 Result::sum, always, false, true},
    AlgorithmRow{Algorithm::binomial_broadcast, "binomial_broadcast", binomial_broadcast,
                 Result::root_value, always},
    AlgorithmRow{Algorithm::pipelined_tree, "pipelined_tree", pipelined_tree_broadcast,
                 Result::root_value, always},
    AlgorithmRow{Algorithm::ring_allgather, "ring_allgather", ring_allgather, Result::concatenation,
                 always},
    AlgorithmRow{Algorithm::doubling_allgather, "doubling_allgather", doubling_allgather,
                 Result::concatenation, always},
    AlgorithmRow{Algorithm::ring_reduce_scatter, "ring_reduce_scatter", ring_reduce_scatter,
                 Result::own_sum, never},
    AlgorithmRow{Algorithm::direct_reduce_scatter, "direct_reduce_scatter", direct_reduce_scatter,
                 Result::own_sum, always},
    AlgorithmRow{Algorithm::pairwise_alltoall, "pairwise_alltoall", pairwise_alltoall,
                 Result::exchange, always},
    AlgorithmRow{Algorithm::bruck_alltoall, "bruck_alltoall", bruck_alltoall, Result::exchange,
                 always},
    AlgorithmRow{Algorithm::binomial_reduce, "binomial_reduce", binomial_reduce, Result::root_sum,
                 always},
    AlgorithmRow{Algorithm::direct_reduce, "direct_reduce", direct_reduce, Result::root_sum,
                 always},
    AlgorithmRow{Algorithm::direct_gather, "direct_gather", direct_gather,
                 Result::root_concatenation, always},
    AlgorithmRow{Algorithm::direct_scatter, "direct_scatter", direct_scatter, Result::own_value,
                 always},
};

}  // namespace

std::span<const AlgorithmRow> algorithm_table() { return kTable; }

const AlgorithmRow* row_of(Algorithm algorithm) {
  const auto* row = std::find_if(kTable.begin(), kTable.end(), [algorithm](const auto& candidate) {
    return candidate.algorithm == algorithm;
  });
  return row == kTable.end() ? nullptr : row;
}

bool is_sum(Result result) {
  return result == Result::sum || result == Result::own_sum || result == Result::root_sum;
}

bool has_root(Result result) {
  return result == Result::root_value || result == Result::own_value ||
         result == Result::root_sum || result == Result::root_concatenation;
}

bool is_scattered(Result result) {
  return result == Result::exchange || result == Result::own_value;
}

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
  for (const AlgorithmRow& row : kTable) {
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

}  // namespace rdmacoll
