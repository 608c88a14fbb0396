// The operator and factors that a reduction runs with.
#pragma once

#include "operation/operation.h"

namespace rdmacoll {

struct Scaled {
  ReduceOp op;  // the operator that runs; an average runs as a sum
  double before, after;
};

// Extrema of 16-bit floats are scaled after the reduction, so that values are rounded only once. A
// negative factor swaps min and max.
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
