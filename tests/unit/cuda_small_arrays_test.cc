// The size from which arrays on a GPU are summed there.
#include <gtest/gtest.h>

#include "cuda/small_arrays.h"

namespace rdmacoll::cuda {
namespace {

constexpr int64_t kMicrosecond = 1000;

TEST(CudaSmallArrays, slower_kernels_leave_larger_arrays_to_the_host) {
  const StartCosts h100{
      .kernel = 12 * kMicrosecond, .small_copy = 7 * kMicrosecond, .large_copy = 14 * kMicrosecond};
  StartCosts slow = h100;
  slow.kernel *= 2;
  EXPECT_GT(bytes_summed_on_gpus(h100), uint64_t{128} << 10);
  EXPECT_LT(bytes_summed_on_gpus(h100), uint64_t{1} << 20);
  EXPECT_GT(bytes_summed_on_gpus(slow), bytes_summed_on_gpus(h100));
}

TEST(CudaSmallArrays, nonsense_of_a_loaded_machine_stays_within_bounds) {
  const int64_t times[] = {0, 1, 50, 12'000, 1'000'000'000};
  for (const int64_t kernel : times) {
    for (const int64_t small : times) {
      for (const int64_t large : times) {
        const uint64_t bytes = bytes_summed_on_gpus({kernel, small, large});
        EXPECT_GE(bytes, uint64_t{4} << 10);
        EXPECT_LE(bytes, uint64_t{1} << 20);
      }
    }
  }
}

}  // namespace
}  // namespace rdmacoll::cuda
