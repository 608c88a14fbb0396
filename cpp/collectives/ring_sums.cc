#include "collectives/halves.h"
#include "collectives/ring_order.h"

namespace rdmacoll {

void ring_sums(Builder& program, const Shape& shape, Space partial) {
  const int ranks = shape.ranks;
  if (ranks == 1) return program.copy(program.output(0), program.contribution(0), true);
  const Ring ring(shape);
  Slice passed = program.contribution(ring.back(1));
  for (int round = 0; round < ranks - 1; ++round) {
    program.send(ring.next(), passed);
    const int in = ring.back(round + 2);
    const Slice received = program.addend(in, 1, round > 0);
    program.receive(ring.previous(), received);
    const bool last = round == ranks - 2;  // then `in` is this rank's own part
    passed = last                       ? program.output(in)
             : partial == Space::output ? program.partial(in)
                                        : program.addend(in, 1, true);
    program.reduce(passed, {received, program.contribution(in)}, last);
  }
}

}  // namespace rdmacoll
