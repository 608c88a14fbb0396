// The kernel that writes a word for which a host, or another GPU, polls.
#pragma once

#include "cuda/kernels/machine.h"

namespace rdmacoll::cuda {

#if defined(__CUDACC__)
RC_INLINE void write(const WriteWordParameters& job) {
  __threadfence_system();
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(job.address), "r"(job.value));
}
#else
RC_INLINE void write(const WriteWordParameters& job) {
  __atomic_store_n(aligned<unsigned>(job.address, sizeof job.value), job.value, __ATOMIC_RELEASE);
}
#endif

}  // namespace rdmacoll::cuda
