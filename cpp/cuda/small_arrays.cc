#include "cuda/small_arrays.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "cuda/kernel_library.h"
#include "cuda/probe_objects.h"

namespace rdmacoll::cuda {
namespace {

// An allreduce of two ranks waits for so many kernels one after the other, or for two copies.
constexpr int64_t kKernelsInARow = 4;
constexpr int64_t kCopiesInARow = 2;
// The host's sums take about as long as the copies beside them.
constexpr double kShareOfSums = 2.0;
constexpr uint64_t kSmallBytesMin = 4 << 10;
constexpr uint64_t kBytesMax = 1 << 20;
constexpr int kRuns = 8;

// The shortest of several runs. `start` returns what the driver says.
template <typename Start>
Status shortest(const Driver& driver, const ProbeObjects& objects, Start start, int64_t& shortest) {
  const SteadyClock clock;
  shortest = std::numeric_limits<int64_t>::max();
  for (int run = 0; run < kRuns; ++run) {
    const Nanoseconds begin = clock.now();
    Result result = start();
    if (result == kSuccess) result = driver.call.cuStreamSynchronize(objects.stream);
    RC_RETURN_IF_ERROR(driver.check(result, "measuring the GPU's start of work"));
    shortest = std::min<int64_t>(shortest, clock.now() - begin);
  }
  return {};
}

}  // namespace

uint64_t bytes_summed_on_gpus(const StartCosts& costs) {
  const int64_t saved = kKernelsInARow * costs.kernel - kCopiesInARow * costs.small_copy;
  const int64_t moved = costs.large_copy - costs.small_copy;
  if (saved <= 0) return kSmallBytesMin;
  if (moved <= 0) return kBytesMax;
  const double byte = static_cast<double>(kCopiesInARow * moved) * kShareOfSums / kLargeCopyBytes;
  return static_cast<uint64_t>(
      std::clamp<double>(static_cast<double>(saved) / byte, kSmallBytesMin, kBytesMax));
}

Status measure(const Gpus& gpus, Gpu gpu, Address memory, FunctionHandle write_word,
               StartCosts& costs) {
  const Driver& driver = gpus.driver();
  const Functions& call = driver.call;
  const ScopedContext scope(gpus, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  ProbeObjects objects(driver);
  RC_RETURN_IF_ERROR(objects.create(kLargeCopyBytes, 0));
  WriteWordParameters job{.address = memory, .value = 1};
  const auto launch = [&] {
    void* parameters[] = {&job};
    return call.cuLaunchKernel(write_word, 1, 1, 1, 1, 1, 1, 0, objects.stream, parameters,
                               nullptr);
  };
  const auto copy = [&](std::size_t bytes) {
    return [&, bytes] {
      return call.cuMemcpyDtoHAsync_v2(objects.host, memory, bytes, objects.stream);
    };
  };
  RC_RETURN_IF_ERROR(shortest(driver, objects, launch, costs.kernel));
  RC_RETURN_IF_ERROR(shortest(driver, objects, copy(8), costs.small_copy));
  return shortest(driver, objects, copy(kLargeCopyBytes), costs.large_copy);
}

}  // namespace rdmacoll::cuda
