#include "collectives/halves.h"

namespace rdmacoll {

Schedule direct_allreduce(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;

  Builder program(shape, ranks);
  direct_sums(program, shape, program.output(rank));
  for (int d = 1; d < ranks; ++d) program.send((rank + d) % ranks, program.output(rank));
  for (int d = 1; d < ranks; ++d) {
    const int peer = (rank + ranks - d) % ranks;
    program.receive(peer, program.output(peer));
  }
  return program.finish();
}

}  // namespace rdmacoll
