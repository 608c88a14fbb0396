#include "collectives/halves.h"

namespace rdmacoll {

Schedule ring_reduce_scatter(const Shape& shape) {
  Builder program(shape, shape.ranks, Space::scratch);
  ring_sums(program, shape, Space::scratch);
  return program.finish();
}

Schedule direct_reduce_scatter(const Shape& shape) {
  Builder program(shape, shape.ranks, Space::scratch);
  direct_sums(program, shape, program.output(shape.rank));
  return program.finish();
}

}  // namespace rdmacoll
