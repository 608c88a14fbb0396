#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/ranges.h"

namespace rdmacoll {

// Broadcast. The root sends everything to each rank: one round. Within a node all ranks read one
// copy of the data.
Schedule flat_broadcast(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, 1);
  if (shape.rank != shape.root) {
    program.receive(shape.root, program.output(0));
    return program.finish();
  }
  program.copy(program.output(0), program.input(0));
  for (int d = 1; d < shape.ranks; ++d) {
    program.send((shape.root + d) % shape.ranks, program.output(0));
  }
  return program.finish();
}

extern constinit const AlgorithmRow flat_broadcast_row{.algorithm = Algorithm{20},
                                                       .name = "flat_broadcast",
                                                       .make = flat_broadcast,
                                                       .result = AlgorithmRow::Result::root_value,
                                                       .preferred = prefers_one_round,
                                                       .correction = correction_of_one_round,
                                                       .segments = Segments::tree};

}  // namespace rdmacoll
