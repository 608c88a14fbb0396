#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

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
  std::vector<Slice> all(static_cast<std::size_t>(ranks), mine);
  for (int d = 1; d < ranks; ++d) {
    const int peer = (rank + ranks - d) % ranks;
    all[static_cast<std::size_t>(peer)] = program.scratch(0);
    program.receive(peer, all[static_cast<std::size_t>(peer)]);
  }
  program.reduce(program.output(0), all, true);
  return program.finish();
}

}  // namespace rdmacoll
