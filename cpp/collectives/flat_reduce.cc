#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/ranges.h"

namespace rdmacoll {

// Reduce. Each rank sends everything to the root, which adds all data in canonical order: one
// round.
Schedule flat_reduce(const Shape& shape) {
  const int ranks = shape.ranks;
  Builder program(shape, 1, Space::scratch);
  const Slice mine = program.contribution(0);
  if (shape.rank != shape.root) {
    program.send(shape.root, mine);
    return program.finish();
  }
  std::vector<Slice> all(static_cast<std::size_t>(ranks), mine);
  for (int d = 1; d < ranks; ++d) {
    const int peer = (shape.root + d) % ranks;
    all[static_cast<std::size_t>(peer)] = program.scratch(0);
    program.receive(peer, all[static_cast<std::size_t>(peer)]);
  }
  if (ranks == 1) {
    program.copy(program.output(0), mine, true);
  } else {
    program.reduce(program.output(0), all, true);
  }
  return program.finish();
}

namespace {

// The data of all ranks at once.
int places_of_flat_reduce(const Shape& shape) { return shape.ranks + 1; }

std::string_view prefers_flat_reduce(const Tuning& tuning, const Facts& facts) {
  return is_small_of_few(tuning, facts) ? "small, few ranks of a node: one round" : "";
}

}  // namespace

extern constinit const AlgorithmRow flat_reduce_row{.algorithm = Algorithm{21},
                                                    .name = "flat_reduce",
                                                    .make = flat_reduce,
                                                    .result = AlgorithmRow::Result::root_sum,
                                                    .preferred = prefers_flat_reduce,
                                                    .correction = correction_of_one_round,
                                                    .places = places_of_flat_reduce,
                                                    .for_little = true};

}  // namespace rdmacoll
