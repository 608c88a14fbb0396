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
    AlgorithmRow{Algorithm::ring_reduce_scatter, "ring_reduce_scatter", ring_reduce_scatter,
                 Result::own_sum, false},
    AlgorithmRow{Algorithm::direct_reduce_scatter, "direct_reduce_scatter", direct_reduce_scatter,
                 Result::own_sum, true},
    AlgorithmRow{Algorithm::pairwise_alltoall, "pairwise_alltoall", pairwise_alltoall,
                 Result::exchange, true},
    AlgorithmRow{Algorithm::binomial_reduce, "binomial_reduce", binomial_reduce, Result::root_sum,
                 true},
    AlgorithmRow{Algorithm::direct_reduce, "direct_reduce", direct_reduce, Result::root_sum, true},
    AlgorithmRow{Algorithm::direct_gather, "direct_gather", direct_gather,
                 Result::root_concatenation, true},
    AlgorithmRow{Algorithm::direct_scatter, "direct_scatter", direct_scatter, Result::own_value,
                 true},
};

}  // namespace

std::span<const AlgorithmRow> algorithm_table() { return kTable; }

bool is_sum(Result result) {
  return result == Result::sum || result == Result::own_sum || result == Result::root_sum;
}

bool has_root(Result result) {
  return result == Result::root_value || result == Result::own_value ||
         result == Result::root_sum || result == Result::root_concatenation;
}

bool is_known(Algorithm algorithm) {
  return algorithm == Algorithm::none || name_of(algorithm) != name_of(Algorithm::none);
}

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
