#include "collectives/halves.h"

namespace rdmacoll {

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

}  // namespace rdmacoll
