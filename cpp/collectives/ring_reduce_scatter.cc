#include "collectives/choose.h"
#include "collectives/shared_stages.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Reduce-scatter. Rank k ends with the sum of part k (parts may have different sizes). It is the
// first half of an allreduce around a ring.
Schedule ring_reduce_scatter(const Shape& shape) {
  Builder program(shape, shape.ranks, Space::scratch);
  ring_sums(program, shape, Space::scratch);
  return program.finish();
}

namespace {

void ring_reduce_scatter_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(true);
  ring_sums(traffic, Space::scratch);
}

}  // namespace

extern constinit const AlgorithmRow ring_reduce_scatter_row{
    .algorithm = Algorithm{10},
    .name = "ring_reduce_scatter",
    .make = ring_reduce_scatter,
    .result = AlgorithmRow::Result::own_sum,
    .traffic = ring_reduce_scatter_traffic,
    .never_canonical = "a ring adds each part in another order"};

}  // namespace rdmacoll
