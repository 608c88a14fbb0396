#include <numeric>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/binary_blocks.h"

namespace rdmacoll {

Schedule halving_doubling_allreduce(const Shape& shape) {
  const int parts = binary_block_parts(shape.ranks);
  Builder program(shape, parts);
  if (shape.ranks == 1) {
    program.copy(program.output(0), program.contribution(0), true);
    return program.finish();
  }
  std::vector<int> everybody(shape.ranks);
  std::iota(everybody.begin(), everybody.end(), 0);
  allreduce_by_blocks(program, everybody, shape.rank, program.contribution(0, parts));
  return program.finish();
}

}  // namespace rdmacoll
