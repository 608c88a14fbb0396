// Element-wise reductions of contiguous operands, one table per instruction set. All tables give
// the same bits: no fused multiply-add, one evaluation tree, one NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace rdmacoll {

// The result is divided by `divisor` and multiplied by `factor`, before the only rounding of 16-bit
// floats. Integers are scaled in float64, truncated toward zero and kept within their type.
struct Scaling {
  double divisor = 1.0;
  double factor = 1.0;
  double prescale = 1.0;  // for 16-bit sources, before they are added: mixed kernels only
};

// to[i] = scaled tree over sources[0..n)[i], n >= 1. The tree splits at the largest power of two
// below its count. `to` may be one of the sources, never a shifted overlap. Every pointer has the
// alignment of its dtype. A NaN result is the positive quiet NaN, whichever operand it came from.
// In hardware the operand that survives would depend on how a compiler orders a commutative
// operation.
using ReduceKernel = void (*)(void* to, const void* const* sources, std::size_t n,
                              std::size_t count, const Scaling& scaling);

// Rows of a table: dtypes with one component, in their order. bool is reduced as uint8.
inline constexpr int kKernelRows = 12;
constexpr int kernel_row(Dtype dtype) {
  const int index = static_cast<int>(dtype);
  if (dtype == Dtype::boolean) return static_cast<int>(Dtype::uint8);
  return index < static_cast<int>(Dtype::boolean) ? index : index - 1;
}
static_assert(kernel_row(Dtype::int16) == kKernelRows - 1);

// Like ReduceKernel, for 16-bit floats if some sources, or the result, are float32, or if the
// 16-bit sources are scaled first. A result in float32 is neither divided nor multiplied.
struct Widths {
  const uint8_t* sources = nullptr;  // by source: whether it is float32
  bool to = false;
};
using MixedKernel = void (*)(void* to, const void* const* sources, std::size_t n, std::size_t count,
                             const Scaling& scaling, const Widths& wide);
inline constexpr int kMixedDtypes = 2;  // from Dtype::float16 on

struct KernelTable {
  const char* instruction_set;
  ReduceKernel kernels[kKernelRows][kReduceOps];  // the column of average is that of sum
  MixedKernel mixed[kMixedDtypes][kReduceOps];
};

// Null if the file was not compiled for the instruction set (another processor family).
const KernelTable* baseline_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();

// The tables that this processor can run, the best one last.
std::span<const KernelTable* const> usable_kernels();
// The kernels of the best table.
ReduceKernel reduce_kernel(Dtype dtype, ReduceOp op);
MixedKernel mixed_kernel(Dtype dtype, ReduceOp op);

}  // namespace rdmacoll
