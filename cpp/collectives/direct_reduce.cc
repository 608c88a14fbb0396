#include "collectives/choose.h"
#include "collectives/in_node.h"
#include "collectives/shared_stages.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Reduce of large messages to `root`: reduce-scatter at the owners of parts, then each rank sends
// its sum to the root.
Schedule direct_reduce(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;

  Builder program(shape, ranks, Space::scratch);
  const Slice sum = rank == shape.root ? program.output(rank) : program.scratch(rank);
  direct_sums(program, shape, sum);
  if (rank != shape.root) {
    program.send(shape.root, sum);
    return program.finish();
  }
  for (int d = 1; d < ranks; ++d) {
    const int peer = (rank + d) % ranks;
    program.receive(peer, program.output(peer));
  }
  return program.finish();
}

namespace {

double direct_reduce_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double other =
      peers * node.pack(part) + node.messages(2 * peers + 1, part) + node.sum(part, peers);
  const double reads = node.messages(peers, part) + peers * node.read(part);
  return node.time(other + node.alone(reads), node.busiest(other + reads, other),
                   node.round(peers, part) + 2 * node.round());
}

void direct_reduce_traffic(Traffic& traffic) {
  direct_sums(traffic);
  for (int rank = 1; rank < traffic.ranks(); ++rank) traffic.move(rank, 0, traffic.part());
  traffic.deliver();
}

}  // namespace

extern constinit const AlgorithmRow direct_reduce_row{.algorithm = Algorithm{14},
                                                      .name = "direct_reduce",
                                                      .make = direct_reduce,
                                                      .result = AlgorithmRow::Result::root_sum,
                                                      .cost_in_node = direct_reduce_in_node,
                                                      .traffic = direct_reduce_traffic,
                                                      .segments = Segments::stages};

}  // namespace rdmacoll
