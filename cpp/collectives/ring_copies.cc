#include "collectives/halves.h"
#include "collectives/ring_order.h"

namespace rdmacoll {

void ring_copies(Builder& program, const Shape& shape) {
  const Ring ring(shape);
  for (int round = 0; round < shape.ranks - 1; ++round) {
    program.send(ring.next(), program.output(ring.back(round)));
    program.receive(ring.previous(), program.output(ring.back(round + 1)));
  }
}

}  // namespace rdmacoll
