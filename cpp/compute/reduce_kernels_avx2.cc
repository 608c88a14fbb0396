// Compiled for AVX2 and F16C, see CMakeLists.txt; empty on other processor families.
#if defined(__AVX2__)

#include "compute/reduce_loops.h"

namespace rdmacoll {

const KernelTable* avx2_kernels() {
  static constexpr KernelTable kTable = RC_KERNEL_TABLE("avx2");
  return &kTable;
}

}  // namespace rdmacoll

#else

#include "compute/reduce_kernels.h"

namespace rdmacoll {

const KernelTable* avx2_kernels() { return nullptr; }

}  // namespace rdmacoll

#endif
