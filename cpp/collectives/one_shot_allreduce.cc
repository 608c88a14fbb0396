#include <limits>

#include "collectives/algorithms.h"
#include "collectives/corrections.h"
#include "collectives/in_node.h"
#include "collectives/shared_stages.h"

namespace rdmacoll {

// Allreduce. Each rank sends all its data to all ranks, and adds all data in canonical order: one
// round of p-1 messages. This helps with little data of 4 to 8 ranks within a node, most where they
// share cores. docs/measurements/2026-11-28-what-mechanisms-are-worth.md has the figures, and shows
// how to see them.
Schedule one_shot_allreduce(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;

  Builder program(shape, 1);
  const Slice mine = program.contribution(0);
  if (ranks == 1) {
    program.copy(program.output(0), mine, true);
    return program.finish();
  }
  for (int d = 1; d < ranks; ++d) program.send((rank + d) % ranks, mine);
  collected_sum(program, shape, 0, program.output(0));
  return program.finish();
}

namespace {

// The sum may overwrite the data that peers read, so they cannot read it in place.
double one_shot_in_node(const InNode& node) {
  if (node.is_in_place()) return std::numeric_limits<double>::infinity();
  const int peers = node.ranks() - 1;
  // H200, 2026-11-27: two ranks that share a GPU wait for its turns, and here none waits twice.
  if (node.is_on_gpus() && peers == 1) return 0;
  const double work = node.pack(node.segment()) + node.messages(2 * peers, node.segment()) +
                      node.sum(node.segment(), peers);
  return node.time(work, node.round(peers, node.segment()) + node.round());
}

}  // namespace

extern constinit const AlgorithmRow one_shot_row{.algorithm = Algorithm{19},
                                                 .name = "one_shot",
                                                 .make = one_shot_allreduce,
                                                 .result = AlgorithmRow::Result::sum,
                                                 .cost_in_node = one_shot_in_node,
                                                 .correction = correction_of_one_round,
                                                 .memory = memory_of_all_data,
                                                 .for_little = true};

}  // namespace rdmacoll
