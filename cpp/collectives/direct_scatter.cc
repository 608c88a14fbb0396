#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Scatter. Part k belongs to rank k (parts may have different sizes); one message each.
Schedule direct_scatter(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  if (shape.rank != shape.root) {
    program.receive(shape.root, program.output(shape.rank));
    return program.finish();
  }
  for (int d = 1; d < shape.ranks; ++d) {
    const int peer = (shape.root + d) % shape.ranks;
    program.send(peer, program.input(peer));
  }
  program.copy(program.output(shape.root), program.input(shape.root));
  return program.finish();
}

namespace {

double direct_scatter_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double sends = peers * (node.pack(part) + node.messages(1, part));
  const double other = node.messages(1, part) + node.read(part);
  // The root copies its own part while the last peer reads.
  const double passage = node.alone(sends) + node.busiest(node.copy(part), other);
  return node.time(passage, node.busiest(sends + node.copy(part), other), 2 * node.round());
}

// Rank 0 is the root.
void direct_scatter_traffic(Traffic& traffic) {
  const double part = traffic.part();
  traffic.give(
      part,
      [&](auto visit) {
        for (int rank = 1; rank < traffic.ranks(); ++rank) visit(0, rank, 1);
      },
      [&](int from, int to, double) { traffic.move(from, to, part); },
      [&] { traffic.copy(0, part); });
  traffic.deliver();
}

}  // namespace

extern constinit const AlgorithmRow direct_scatter_row{.algorithm = Algorithm{16},
                                                       .name = "direct_scatter",
                                                       .make = direct_scatter,
                                                       .result = AlgorithmRow::Result::own_value,
                                                       .cost_in_node = direct_scatter_in_node,
                                                       .traffic = direct_scatter_traffic};

}  // namespace rdmacoll
