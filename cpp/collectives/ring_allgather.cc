#include "collectives/choose.h"
#include "collectives/in_node.h"
#include "collectives/shared_stages.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Allgather. Part k is the contribution of rank k (parts may have different sizes).
Schedule ring_allgather(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  program.copy(program.output(shape.rank), program.input(shape.rank));
  ring_copies(program, shape);
  return program.finish();
}

namespace {

double ring_allgather_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double work =
      node.copy(part) + peers * (node.pack(part) + node.read(part) + node.messages(2, part));
  return node.time(work, (peers + 1) * node.round());
}

void ring_allgather_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(true);
  for (int rank = 0; rank < traffic.ranks(); ++rank) traffic.copy(rank, traffic.part());
  ring_copies(traffic, false);
}

}  // namespace

extern constinit const AlgorithmRow ring_allgather_row{
    .algorithm = Algorithm{5},
    .name = "ring_allgather",
    .make = ring_allgather,
    .result = AlgorithmRow::Result::concatenation,
    .cost_in_node = ring_allgather_in_node,
    .traffic = ring_allgather_traffic};

}  // namespace rdmacoll
