#include <vector>

#include "collectives/shared_stages.h"

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

void direct_sums(Traffic& traffic) {
  const int ranks = traffic.ranks();
  const double part = traffic.part();
  traffic.give(
      part, [&](auto visit) { traffic.each_pair(visit); },
      [&](int from, int to, double count) { traffic.send(from, to, part, count); }, [] {});
  traffic.deliver();
  for (int rank = 0; rank < ranks; ++rank) traffic.sum(rank, part, ranks - 1);
}

void direct_copies(Traffic& traffic) {
  const int ranks = traffic.ranks();
  const double part = traffic.part();
  std::vector<bool> is_packed(static_cast<std::size_t>(ranks));
  traffic.each_pair([&](int from, int to, double count) {
    if (!is_packed[from] && traffic.are_near(from, to)) {
      traffic.pack_result(from, to, part, true);
      is_packed[from] = true;
    }
    traffic.move(from, to, part, false, count);
  });
  for (int rank = 0; rank < ranks; ++rank) traffic.unpack(rank, part);
  traffic.deliver();
}

}  // namespace rdmacoll
