#include "compute/reduce_kernels.h"

#include <array>

#include "base/status.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

bool can_run_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

bool can_run_avx512() {
#if defined(__x86_64__)
  return can_run_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

struct Usable {
  std::array<const KernelTable*, 3> tables{};
  std::size_t count = 0;

  Usable() {
    add(baseline_kernels(), true);
    add(avx2_kernels(), can_run_avx2());
    add(avx512_kernels(), can_run_avx512());
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
  const auto row = static_cast<std::size_t>(dtype);
  const auto column = static_cast<std::size_t>(op);
  RC_ASSERT(row < kReducibleDtypes && column < kReduceOps, cat("dtype ", row, ", op ", column));
  return usable_kernels().back()->kernels[row][column];
}

}  // namespace rdmacoll
