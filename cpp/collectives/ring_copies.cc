#include "collectives/halves.h"

namespace rdmacoll {

void ring_copies(Builder& program, const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  const auto part = [ranks](int index) { return (index + ranks) % ranks; };
  for (int round = 0; round < ranks - 1; ++round) {
    program.send((rank + 1) % ranks, program.output(part(rank - round)));
    program.receive((rank + ranks - 1) % ranks, program.output(part(rank - round - 1)));
  }
}

}  // namespace rdmacoll
