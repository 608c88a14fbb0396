#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

Schedule direct_gather(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  if (shape.rank != shape.root) {
    program.send(shape.root, program.input(shape.rank));
    return program.finish();
  }
  program.copy(program.output(shape.root), program.input(shape.root));
  for (int d = 1; d < shape.ranks; ++d) {
    const int peer = (shape.root + d) % shape.ranks;
    program.receive(peer, program.output(peer));
  }
  return program.finish();
}

}  // namespace rdmacoll
