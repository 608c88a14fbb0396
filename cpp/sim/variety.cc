#include "sim/variety.h"

#include <algorithm>
#include <array>

namespace rdmacoll {
namespace {

// Often 16-bit floats, whose sums are float32 internally.
Dtype make_dtype(RandomSource& random, bool reduces) {
  if (!reduces && random.chance(0.5)) {
    return random.one_of(std::array{Dtype::boolean, Dtype::boolean, Dtype::uint16});
  }
  return random.one_of(std::array{Dtype::float16, Dtype::float16, Dtype::bfloat16, Dtype::bfloat16,
                                  Dtype::int8, Dtype::uint8});
}

}  // namespace

void vary(RandomSource& random, std::vector<SimOperation>& phase) {
  for (SimOperation& operation : phase) {
    if (operation.shapes.empty()) continue;
    const bool reduces = row_of(operation.kind).reduces;
    if (random.chance(0.3)) operation.dtype = make_dtype(random, reduces);
    if (reduces && operation.dtype == Dtype::uint8 && is_reducible(Dtype::boolean, operation.op)) {
      operation.dtype = Dtype::boolean;
    }
    if (operation.op == ReduceOp::average && is_integer(operation.dtype)) {
      operation.op = ReduceOp::sum;
    }
    if (reduces && operation.op == ReduceOp::sum && random.chance(0.2)) {
      operation.op = ReduceOp::product;
      operation.prescale = 1.0;
    }
    if (operation.kind == Kind::alltoall && random.chance(0.5)) {
      const bool are_alike = random.chance(0.7);
      int64_t even = random.between(0, 3);
      for (auto& rows : operation.rows) {
        std::fill(rows.begin(), rows.end(), even);
        if (!are_alike) even = random.between(0, 3);
      }
    }
  }
}

}  // namespace rdmacoll
