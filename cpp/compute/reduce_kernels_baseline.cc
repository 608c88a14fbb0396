// Compiled for any processor of the family.
#include "compute/reduce_loops.h"

namespace rdmacoll {

const KernelTable* baseline_kernels() {
  static constexpr KernelTable kTable = RC_KERNEL_TABLE("baseline");
  return &kTable;
}

}  // namespace rdmacoll
