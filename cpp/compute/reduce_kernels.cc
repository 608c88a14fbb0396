#include "compute/reduce_kernels.h"

#include <array>

#include "base/status.h"
#include "base/text.h"
#include "compute/processor.h"

namespace rdmacoll {
namespace {

struct Usable {
  std::array<const KernelTable*, 3> tables{};
  std::size_t count = 0;

  Usable() {
    const ProcessorWords processor = read_processor();
    add(baseline_kernels(), true);
    add(avx2_kernels(), has_avx2(processor));
    add(avx512_kernels(), has_avx512(processor));
  }
  void add(const KernelTable* table, bool can_run) {
    if (table != nullptr && can_run) tables[count++] = table;
  }
};

}  // namespace

std::span<const KernelTable* const> usable_kernels() {
  static const Usable kUsable;
  return {kUsable.tables.data(), kUsable.count};
}

ReduceKernel reduce_kernel(Dtype dtype, ReduceOp op) {
  RC_ASSERT(is_reducible(dtype, op), cat(name_of(op), " of ", name_of(dtype)));
  // For bool, bytes are 0 or 1: min is "and", max is "or".
  const auto row = static_cast<std::size_t>(kernel_row(dtype));
  RC_ASSERT(row < kKernelRows, name_of(dtype).data());
  const auto column = static_cast<std::size_t>(op);
  return usable_kernels().back()->kernels[row][column];
}

MixedKernel mixed_kernel(Dtype dtype, ReduceOp op) {
  RC_ASSERT(is_16_bit_float(dtype), cat("dtype ", name_of(dtype)));
  const auto row = static_cast<std::size_t>(dtype) - static_cast<std::size_t>(Dtype::float16);
  return usable_kernels().back()->mixed[row][static_cast<std::size_t>(op)];
}

}  // namespace rdmacoll
