#include <algorithm>

#include "collectives/in_node.h"
#include "collectives/shared_stages.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Reduce-scatter. Rank k ends with the sum of part k (parts may have different sizes). Rank k
// collects part k from all ranks, and reduces once.
Schedule direct_reduce_scatter(const Shape& shape) {
  Builder program(shape, shape.ranks, Space::scratch);
  direct_sums(program, shape, program.output(shape.rank));
  return program.finish();
}

namespace {

double direct_reduce_scatter_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double work =
      peers * node.pack(part) + node.messages(2 * peers, part) + node.sum(part, peers);
  return node.time(work, node.round(peers, part) + node.round());
}

void direct_reduce_scatter_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(true);
  direct_sums(traffic);
}

}  // namespace

extern constinit const AlgorithmRow direct_reduce_scatter_row{
    .algorithm = Algorithm{11},
    .name = "direct_reduce_scatter",
    .make = direct_reduce_scatter,
    .result = AlgorithmRow::Result::own_sum,
    .cost_in_node = direct_reduce_scatter_in_node,
    .traffic = direct_reduce_scatter_traffic,
    .segments = Segments::stages};

}  // namespace rdmacoll
