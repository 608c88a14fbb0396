#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

Schedule ring_allgather(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  const auto part = [ranks](int index) { return ((index % ranks) + ranks) % ranks; };

  Builder program(ranks, rank, ranks);
  program.copy(program.output(rank), program.input(rank));
  for (int round = 0; round < ranks - 1; ++round) {
    program.send((rank + 1) % ranks, program.output(part(rank - round)));
    program.receive((rank + ranks - 1) % ranks, program.output(part(rank - round - 1)));
  }
  return program.finish();
}

}  // namespace rdmacoll
