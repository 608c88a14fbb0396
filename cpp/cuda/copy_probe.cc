#include "cuda/copy_probe.h"

#include <algorithm>
#include <iomanip>
#include <limits>
#include <sstream>

#include "base/text.h"
#include "cuda/probe_objects.h"

namespace rdmacoll::cuda {
namespace {

constexpr int kCopyRuns = 6;
constexpr double kNanosecondsPerUs = 1000;

}  // namespace

CopyCosts costs_of(const CopyTimes& to_host, const CopyTimes& to_gpu) {
  CopyCosts slower;
  for (const CopyTimes& times : {to_host, to_gpu}) {
    const auto moved = static_cast<double>(times.large - times.small);
    if (times.small <= 0 || moved <= 0) return {};
    const double rate = (kLargeProbe - kSmallProbe) * kNanosecondsPerUs / moved;
    const double start = static_cast<double>(times.small) / kNanosecondsPerUs - kSmallProbe / rate;
    if (start <= 0) return {};
    slower.start_us = std::max(slower.start_us, start);
    slower.bytes_per_us = slower.is_known() ? std::min(slower.bytes_per_us, rate) : rate;
  }
  return slower;
}

Status measure_copies(const Gpus& gpus, Gpu gpu, const Clock& clock, CopyCosts& costs,
                      Nanoseconds limit) {
  const Driver& driver = gpus.driver();
  const Functions& call = driver.call;
  const Nanoseconds end = clock.now() + limit;
  const ScopedContext scope(gpus, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  ProbeObjects objects(driver);
  RC_RETURN_IF_ERROR(objects.create(kLargeProbe, kLargeProbe));
  const auto shortest = [&](bool is_to_host, std::size_t bytes, int64_t& shortest) -> Status {
    shortest = std::numeric_limits<int64_t>::max();
    for (int run = 0; run < kCopyRuns && (run == 0 || clock.now() < end); ++run) {
      const Nanoseconds begin = clock.now();
      Result result =
          is_to_host
              ? call.cuMemcpyDtoHAsync_v2(objects.host, objects.device, bytes, objects.stream)
              : call.cuMemcpyHtoDAsync_v2(objects.device, objects.host, bytes, objects.stream);
      if (result == kSuccess) result = call.cuStreamSynchronize(objects.stream);
      RC_RETURN_IF_ERROR(driver.check(result, "measuring copies"));
      shortest = std::min<int64_t>(shortest, clock.now() - begin);
    }
    return {};
  };
  CopyTimes to_host, to_gpu;
  RC_RETURN_IF_ERROR(shortest(true, kSmallProbe, to_host.small));
  RC_RETURN_IF_ERROR(shortest(false, kSmallProbe, to_gpu.small));
  RC_RETURN_IF_ERROR(shortest(true, kLargeProbe, to_host.large));
  RC_RETURN_IF_ERROR(shortest(false, kLargeProbe, to_gpu.large));
  costs = costs_of(to_host, to_gpu);
  return {};
}

std::string text_of(const CopyCosts& costs) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << costs.start_us << " us and "
       << costs.bytes_per_us / kNanosecondsPerUs << " GB/s";
  return text.str();
}

void CopyProbe::prepare(Gpu gpu) {
  if (gpu == kHost) return;
  const auto index = static_cast<std::size_t>(gpu);
  if (results_->has_begun[index].exchange(true)) return;
  const auto measure = [gpus = gpus_, results = results_, log = log_, first = first_, gpu, index] {
    const SteadyClock clock;
    const Nanoseconds begin = clock.now();
    first(gpu, clock, begin + kProbeLimit / 10);
    const Status status =
        measure_copies(*gpus, gpu, clock, results->costs[index], kProbeLimit / 10 * 9);
    const CopyCosts& costs = results->costs[index];
    const std::string name = gpus->facts(gpu).text();
    if (!status.ok()) {
      log.warning(cat("the costs of copies to ", name, " are unknown, so arrays there move in ",
                      "segments of the usual length, maybe more slowly: ", status.message()));
      return;
    }
    if (!costs.is_known()) {  // the machine was busy
      log.info(cat("the costs of copies to ", name,
                   " are unknown, and segments are of the usual length."));
      return;
    }
    log.info(cat("a copy between pinned memory and ", name, " takes ", text_of(costs),
                 ", measured in ", (clock.now() - begin) / kMillisecond, " ms."));
    results->has_ended[index].store(true, std::memory_order_release);
  };
  const Status posted = thread_.post(measure);
  if (!posted.ok()) log_.warning(posted.message());
}

CopyCosts CopyProbe::slowest() const {
  CopyCosts slowest;
  for (std::size_t i = 0; i < Gpus::kGpusMax; ++i) {
    if (!results_->has_ended[i].load(std::memory_order_acquire)) continue;
    const CopyCosts& own = results_->costs[i];
    slowest.start_us = std::max(slowest.start_us, own.start_us);
    slowest.bytes_per_us =
        slowest.is_known() ? std::min(slowest.bytes_per_us, own.bytes_per_us) : own.bytes_per_us;
  }
  return slowest;
}

}  // namespace rdmacoll::cuda
