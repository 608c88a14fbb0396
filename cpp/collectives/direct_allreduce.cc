#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

Schedule direct_allreduce(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  // Everybody begins with another partner, so that no rank is hit by all others at once.
  const auto partner = [&](int distance) { return (rank + distance) % ranks; };

  Builder program(ranks, rank, ranks, shape.prescaled);
  for (int d = 1; d < ranks; ++d) program.send(partner(d), program.contribution(partner(d)));

  std::vector<Slice> sources(ranks);
  sources[rank] = program.contribution(rank);
  for (int d = 1; d < ranks; ++d) {
    const int peer = partner(ranks - d);
    sources[peer] = program.scratch(rank);
    program.receive(peer, sources[peer]);
  }
  program.reduce(program.output(rank), sources, true);

  for (int d = 1; d < ranks; ++d) program.send(partner(d), program.output(rank));
  for (int d = 1; d < ranks; ++d) {
    const int peer = partner(ranks - d);
    program.receive(peer, program.output(peer));
  }
  return program.finish();
}

}  // namespace rdmacoll
