#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Gather. Part k belongs to rank k (parts may have different sizes); one message each.
Schedule direct_gather(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  if (shape.rank != shape.root) {
    program.send(shape.root, program.input(shape.rank));
    return program.finish();
  }
  program.copy(program.output(shape.root), program.input(shape.root));
  for (int d = 1; d < shape.ranks; ++d) {
    const int peer = (shape.root + d) % shape.ranks;
    program.receive(peer, program.output(peer));
  }
  return program.finish();
}

namespace {

double direct_gather_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double other = node.pack(part) + node.messages(1, part);
  const double reads = peers * (node.read(part) + node.messages(1, part));
  const double root = node.copy(part) + reads;
  return node.time(node.busiest(node.copy(part), other) + node.alone(reads),
                   node.busiest(root, other), 2 * node.round());
}

// Rank 0 is the root.
void direct_gather_traffic(Traffic& traffic) {
  const double part = traffic.part();
  traffic.copy(0, part);
  for (int rank = 1; rank < traffic.ranks(); ++rank) {
    traffic.pack(rank, 0, part);
    traffic.move(rank, 0, part);
  }
  traffic.deliver();
}

}  // namespace

extern constinit const AlgorithmRow direct_gather_row{
    .algorithm = Algorithm{15},
    .name = "direct_gather",
    .make = direct_gather,
    .result = AlgorithmRow::Result::root_concatenation,
    .cost_in_node = direct_gather_in_node,
    .traffic = direct_gather_traffic};

}  // namespace rdmacoll
