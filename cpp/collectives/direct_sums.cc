#include <vector>

#include "collectives/halves.h"

namespace rdmacoll {

void collected_sum(Builder& program, const Shape& shape, int part, const Slice& sum) {
  std::vector<Slice> sources(shape.ranks, program.contribution(part));
  for (int d = 1; d < shape.ranks; ++d) {
    const int peer = (shape.rank + shape.ranks - d) % shape.ranks;
    sources[peer] = program.scratch(part);
    program.receive(peer, sources[peer]);
  }
  program.reduce(sum, sources, true);
}

void direct_sums(Builder& program, const Shape& shape, const Slice& sum) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  // Each rank begins with a different partner, so that no rank is hit by all others at once.
  const auto partner = [&](int distance) { return (rank + distance) % ranks; };

  for (int d = 1; d < ranks; ++d) program.send(partner(d), program.contribution(partner(d)));
  collected_sum(program, shape, rank, sum);
}

void direct_copies(Builder& program, const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  for (int d = 1; d < ranks; ++d) program.send((rank + d) % ranks, program.output(rank));
  for (int d = 1; d < ranks; ++d) {
    const int peer = (rank + ranks - d) % ranks;
    program.receive(peer, program.output(peer));
  }
}

}  // namespace rdmacoll
