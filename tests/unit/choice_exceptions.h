// Choices that cost clearly more than the cheapest algorithm of the cost model, and why they stay.
#pragma once

#include <string_view>

#include "algorithm_names.h"

namespace rdmacoll {

// The choice costs at most kUsualLoss times as much as the cheapest algorithm of the model, for up
// to kRanksCompared ranks. These are the exceptions, with the largest factor. A row's own
// correction of the model is none of them.
inline constexpr double kUsualLoss = 1.1;
inline constexpr int kRanksCompared = 16;
struct Exception {
  std::string_view kind;
  Algorithm chosen, cheaper;
  double most;
};
inline constexpr Exception kExceptions[] = {
    // One cut serves all numbers of ranks. Near it, the neighbour of the range is cheaper.
    {"allreduce", named::direct, named::halving_doubling, 1.17},
    {"allreduce", named::halving_doubling, named::recursive_doubling, 1.11},
    {"allreduce", named::recursive_doubling, named::direct, 1.12},
    {"allreduce", named::ring, named::direct, 1.18},
    {"allreduce_16", named::ring, named::direct, 1.18},
    {"reduce", named::direct_reduce, named::binomial_reduce, 1.2},
    {"reduce_16", named::direct_reduce, named::binomial_reduce, 1.33},
    {"reducescatter", named::direct_reduce_scatter, named::ring_reduce_scatter, 1.23},
    {"reducescatter", named::ring_reduce_scatter, named::direct_reduce_scatter, 1.26},
    // A ring begins at one size for two, four and eight ranks, and is the cheapest above 4 MiB.
    {"allreduce", named::ring, named::halving_doubling, 1.18},
    {"allreduce_16", named::ring, named::halving_doubling, 1.18},
    // Nodes with several ranks have one rule for all their shapes. It suits large nodes, and these
    // are two or three small or uneven ones.
    {"allreduce", named::recursive_doubling, named::halving_doubling, 1.24},
    {"allreduce", named::recursive_doubling, named::two_level, 1.24},
    {"allreduce", named::two_level, named::direct, 1.25},
    {"allreduce", named::two_level, named::recursive_doubling, 1.26},
    {"allreduce", named::two_level, named::ring, 1.26},
    {"allgather", named::doubling_allgather, named::ring_allgather, 1.18},
    {"allgather", named::ring_allgather, named::doubling_allgather, 1.28},
    {"alltoall", named::pairwise_alltoall, named::bruck_alltoall, 1.3},
    {"broadcast", named::binomial_broadcast, named::pipelined_tree, 1.34},
    {"broadcast", named::pipelined_tree, named::binomial_broadcast, 1.15},
    {"reduce", named::binomial_reduce, named::direct_reduce, 1.33},
    {"reduce_16", named::binomial_reduce, named::direct_reduce, 1.37},
    // 16-bit floats: the rules avoid sums that travel in float32, and many messages to one rank at
    // once. The model weighs both less.
    {"allreduce_16", named::direct, named::halving_doubling, 1.32},
    {"allreduce_16", named::halving_doubling, named::direct, 1.42},
    {"allreduce_16", named::recursive_doubling, named::halving_doubling, 1.18},
    {"allreduce_16", named::recursive_doubling, named::two_level, 1.18},
    {"allreduce_16", named::recursive_doubling, named::direct, 1.11},
    {"allreduce_16", named::direct, named::recursive_doubling, 1.11},
    {"allreduce_16", named::halving_doubling, named::ring, 1.19},
    {"allreduce_16", named::two_level, named::direct, 1.33},
    {"allreduce_16", named::two_level, named::ring, 1.36},
    {"reducescatter_16", named::direct_reduce_scatter, named::ring_reduce_scatter, 1.27},
    {"reducescatter_16", named::ring_reduce_scatter, named::direct_reduce_scatter, 1.4},
};
inline double most_lost(std::string_view kind, Algorithm chosen, Algorithm cheaper) {
  for (const Exception& one : kExceptions) {
    if (one.kind == kind && one.chosen == chosen && one.cheaper == cheaper) return one.most;
  }
  return kUsualLoss;
}

}  // namespace rdmacoll
