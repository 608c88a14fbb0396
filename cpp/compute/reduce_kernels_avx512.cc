// Compiled for AVX-512 (F, BW, DQ, VL), see CMakeLists.txt; empty on other processor families.
#if defined(__AVX512F__)

#include "compute/reduce_loops.h"

namespace rdmacoll {

const KernelTable* avx512_kernels() {
  static constexpr KernelTable kTable = RC_KERNEL_TABLE("avx512");
  return &kTable;
}

}  // namespace rdmacoll

#else

#include "compute/reduce_kernels.h"

namespace rdmacoll {

const KernelTable* avx512_kernels() { return nullptr; }

}  // namespace rdmacoll

#endif
