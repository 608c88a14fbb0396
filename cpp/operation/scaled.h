// What a reduction's factors come to.
#pragma once

#include "operation/operation.h"

namespace rdmacoll {

struct Scaled {
  ReduceOp op;  // that runs: of an average it is the sum
  double before, after;
};

// The least of scaled values is the scaled least: 16-bit floats are rounded once that way.
inline Scaled scaled_of(const Request& request) {
  const ReduceOp op = request.op == ReduceOp::average ? ReduceOp::sum : request.op;
  const bool is_extremum = op == ReduceOp::min || op == ReduceOp::max;
  const double before = request.prescale;
  if (before == 1.0 || !is_extremum || !is_16_bit_float(request.dtype)) {
    return {op, before, request.postscale};
  }
  const ReduceOp other = op == ReduceOp::min ? ReduceOp::max : ReduceOp::min;
  return {before < 0 ? other : op, 1.0, before * request.postscale};
}

}  // namespace rdmacoll
