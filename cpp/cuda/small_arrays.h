// The size from which arrays on a GPU are summed there. Smaller ones go faster through host memory,
// since kernels take longer to start than copies.
#pragma once

#include <cstdint>

#include "cuda/gpus.h"

namespace rdmacoll::cuda {

// Durations in nanoseconds, each with the wait for its end.
struct StartCosts {
  int64_t kernel = 0;
  int64_t small_copy = 0;  // between host and GPU
  int64_t large_copy = 0;  // likewise, with kLargeCopyBytes
};
inline constexpr uint64_t kLargeCopyBytes = 256 << 10;

// Pure: bytes of a batch.
uint64_t bytes_summed_on_gpus(const StartCosts& costs);

// Measures the costs, in about a millisecond beside an idle GPU. It waits for kernels that run.
// `memory`: on the GPU, of kLargeCopyBytes. `write_word`: the kernel of this name.
Status measure(const Gpus& gpus, Gpu gpu, Address memory, FunctionHandle write_word,
               StartCosts& costs);

}  // namespace rdmacoll::cuda
