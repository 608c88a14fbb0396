#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

Schedule pairwise_alltoall(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;

  Builder program(ranks, rank, 2 * ranks);
  const auto given = [&](int peer) { return program.input(peer); };
  const auto got = [&](int peer) { return program.output(ranks + peer); };
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    const int from = (rank + ranks - d) % ranks;
    program.send(to, given(to));
    program.receive(from, got(from));
  }
  program.copy(got(rank), given(rank));
  return program.finish();
}

}  // namespace rdmacoll
