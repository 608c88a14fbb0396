#include <limits>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/in_node.h"

namespace rdmacoll {

// Allreduce. Rank k collects part k from all ranks, reduces once in canonical order, and returns
// the sum in the slots in which the parts came. Within a node these lie in memory of the other
// ranks, and the sum is written there. Each line then crosses once to the rank that adds, and once
// back. This helps most where cores have no cache in common
// (docs/measurements/2026-11-29-orders-of-a-sum.md).
Schedule write_back_allreduce(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  // Each rank begins with a different partner, so that no rank is hit by all others at once.
  const auto partner = [&](int distance) { return (rank + distance) % ranks; };

  Builder program(shape, ranks);
  std::vector<Slice> given(ranks), taken(ranks, program.contribution(rank));
  for (int d = 1; d < ranks; ++d) {
    const int peer = partner(d);
    given[peer] = program.scratch(peer);
    program.copy(given[peer], program.contribution(peer));
    program.send(peer, given[peer]);
  }
  for (int d = ranks - 1; d > 0; --d) {
    const int peer = partner(d);
    taken[peer] = program.scratch(rank);
    program.receive(peer, taken[peer]);
  }
  program.reduce(program.output(rank), taken, true);
  for (int d = 1; d < ranks; ++d) {
    const int peer = partner(d);
    program.copy(taken[peer], program.output(rank));
    program.send(peer, taken[peer]);
  }
  for (int d = ranks - 1; d > 0; --d) {
    const int peer = partner(d);
    program.receive(peer, given[peer]);
    program.copy(program.output(peer), given[peer]);
  }
  return program.finish();
}

namespace {

// Slots are lent if data is shown, and not read in place. Parts that a message could carry are not
// worth a slot (docs/measurements/2026-11-30-intel-xeon.md). Memory of GPUs has not been measured.
double write_back_in_node(const InNode& node) {
  const bool has_slots =
      node.ranks() > 1 && node.exceeds_message(node.part()) && !node.is_in_place();
  if (!has_slots || node.is_on_gpus() || node.stages_gpus()) {
    return std::numeric_limits<double>::infinity();
  }
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double work = 2 * peers * node.write_lent(part) + node.messages(2 * peers, part) +
                      node.sum(part, peers) + peers * node.read(part);
  return node.time(work, node.round(peers, part) + node.round());
}

}  // namespace

extern constinit const AlgorithmRow write_back_row{.algorithm = Algorithm{24},
                                                   .name = "write_back",
                                                   .make = write_back_allreduce,
                                                   .result = AlgorithmRow::Result::sum,
                                                   .cost_in_node = write_back_in_node,
                                                   .segments = Segments::stages};

}  // namespace rdmacoll
