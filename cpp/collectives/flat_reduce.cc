#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/corrections.h"
#include "collectives/in_node.h"
#include "collectives/shared_stages.h"

namespace rdmacoll {

// Reduce. Each rank sends everything to the root, which adds all data in canonical order: one
// round.
Schedule flat_reduce(const Shape& shape) {
  Builder program(shape, 1, Space::scratch);
  const Slice mine = program.contribution(0);
  if (shape.rank != shape.root) {
    program.send(shape.root, mine);
    return program.finish();
  }
  if (shape.ranks == 1) {
    program.copy(program.output(0), mine, true);
  } else {
    collected_sum(program, shape, 0, program.output(0));
  }
  return program.finish();
}

namespace {

double flat_reduce_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double other = node.pack(node.segment()) + node.messages(1, node.segment());
  const double root = node.messages(peers, node.segment()) + node.sum(node.segment(), peers);
  return node.time(other + node.alone(root), node.busiest(root, other), 2 * node.round());
}

}  // namespace

extern constinit const AlgorithmRow flat_reduce_row{.algorithm = Algorithm{21},
                                                    .name = "flat_reduce",
                                                    .make = flat_reduce,
                                                    .result = AlgorithmRow::Result::root_sum,
                                                    .cost_in_node = flat_reduce_in_node,
                                                    .correction = correction_of_one_round,
                                                    .memory = memory_of_all_data,
                                                    .for_little = true};

}  // namespace rdmacoll
