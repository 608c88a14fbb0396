#include "collectives/algorithms.h"
#include "collectives/halves.h"
#include "collectives/ranges.h"

namespace rdmacoll {

// Allreduce. Each rank sends all its data to all ranks, and adds all data in canonical order: one
// round of p-1 messages.
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

std::string_view prefers_one_shot(const Tuning& tuning, const Facts& facts) {
  if (facts.one_node && facts.on_gpus && facts.ranks == 2) {
    return "two ranks with GPUs: neither waits twice for the other's turn";
  }
  return is_small_of_few(tuning, facts) ? "small, few ranks of a node: one round" : "";
}

}  // namespace

extern constinit const AlgorithmRow one_shot_row{.algorithm = Algorithm{19},
                                                 .name = "one_shot",
                                                 .make = one_shot_allreduce,
                                                 .result = AlgorithmRow::Result::sum,
                                                 .preferred = prefers_one_shot,
                                                 .correction = correction_of_one_round,
                                                 .places = places_of_all_data,
                                                 .for_little = true};

}  // namespace rdmacoll
