#include "collectives/algorithms.h"

#include <array>

#include "base/status.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

constexpr std::array kTable{
    AlgorithmRow{Algorithm::ring, "ring", ring_allreduce, Result::sum, false},
    AlgorithmRow{Algorithm::direct, "direct", direct_allreduce, Result::sum, true},
    AlgorithmRow{Algorithm::recursive_doubling, "recursive_doubling", recursive_doubling_allreduce,
                 Result::sum, true},
    AlgorithmRow{Algorithm::binomial_broadcast, "binomial_broadcast", binomial_broadcast,
                 Result::root_value, true},
    AlgorithmRow{Algorithm::ring_allgather, "ring_allgather", ring_allgather, Result::concatenation,
                 true},
    AlgorithmRow{Algorithm::halving_doubling, "halving_doubling", halving_doubling_allreduce,
                 Result::sum, true},
    AlgorithmRow{Algorithm::pipelined_tree, "pipelined_tree", pipelined_tree_broadcast,
                 Result::root_value, true},
    AlgorithmRow{Algorithm::doubling_allgather, "doubling_allgather", doubling_allgather,
                 Result::concatenation, true},
};

}  // namespace

std::span<const AlgorithmRow> algorithm_table() { return kTable; }

std::string_view name_of(Algorithm algorithm) {
  for (const AlgorithmRow& row : kTable) {
    if (row.algorithm == algorithm) return row.name;
  }
  return "none";
}

std::optional<Algorithm> algorithm_from(std::string_view name) {
  for (const AlgorithmRow& row : kTable) {
    if (row.name == name) return row.algorithm;
  }
  return std::nullopt;
}

Schedule make_schedule(Algorithm algorithm, const Shape& shape) {
  for (const AlgorithmRow& row : kTable) {
    if (row.algorithm == algorithm) return row.make(shape);
  }
  RC_ASSERT(algorithm == Algorithm::none);
  Schedule empty;
  empty.ranks = shape.ranks;
  empty.rank = shape.rank;
  return empty;
}

}  // namespace rdmacoll
