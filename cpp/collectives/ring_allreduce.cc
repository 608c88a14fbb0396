#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

Schedule ring_allreduce(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  const int next = (rank + 1) % ranks;
  const int previous = (rank + ranks - 1) % ranks;
  const auto part = [ranks](int index) { return ((index % ranks) + ranks) % ranks; };

  Builder program(ranks, rank, ranks, shape.prescaled);
  if (ranks == 1) {
    program.copy(program.output(0), program.contribution(0), true);
    return program.finish();
  }
  // Reduce-scatter: at the end this rank owns the full sum of part rank + 1.
  for (int round = 0; round < ranks - 1; ++round) {
    const int out = part(rank - round);
    const int in = part(rank - round - 1);
    program.send(next, round == 0 ? program.contribution(out) : program.output(out));
    const Slice partial = program.scratch(in);
    program.receive(previous, partial);
    program.reduce(program.output(in), {partial, program.contribution(in)}, round == ranks - 2);
  }
  // Allgather: the sums go round.
  for (int round = 0; round < ranks - 1; ++round) {
    program.send(next, program.output(part(rank + 1 - round)));
    program.receive(previous, program.output(part(rank - round)));
  }
  return program.finish();
}

}  // namespace rdmacoll
