#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

Schedule direct_scatter(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  if (shape.rank != shape.root) {
    program.receive(shape.root, program.output(shape.rank));
    return program.finish();
  }
  for (int d = 1; d < shape.ranks; ++d) {
    const int peer = (shape.root + d) % shape.ranks;
    program.send(peer, program.input(peer));
  }
  program.copy(program.output(shape.root), program.input(shape.root));
  return program.finish();
}

}  // namespace rdmacoll
