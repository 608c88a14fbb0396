#include "collectives/halves.h"

namespace rdmacoll {

void ring_sums(Builder& program, const Shape& shape, Space partial) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  const int next = (rank + 1) % ranks;
  const int previous = (rank + ranks - 1) % ranks;
  const auto part = [ranks](int index) { return (index + 2 * ranks) % ranks; };

  if (ranks == 1) return program.copy(program.output(0), program.contribution(0), true);
  Slice passed = program.contribution(part(rank - 1));
  for (int round = 0; round < ranks - 1; ++round) {
    program.send(next, passed);
    const int in = part(rank - round - 2);
    const Slice received = program.scratch(in);
    program.receive(previous, received);
    const bool last = round == ranks - 2;  // then `in` is my own part
    passed = last || partial == Space::output ? program.output(in) : program.scratch(in);
    program.reduce(passed, {received, program.contribution(in)}, last);
  }
}

}  // namespace rdmacoll
