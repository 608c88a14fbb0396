// Measures copies between pinned host memory and GPUs, when these are first used.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/copy_costs.h"
#include "base/log.h"
#include "cuda/driver_thread.h"
#include "cuda/gpus.h"

namespace rdmacoll::cuda {

// The shortest times of copies in one direction, in nanoseconds.
struct CopyTimes {
  int64_t small = 0, large = 0;
};
inline constexpr std::size_t kSmallProbe = 64 << 10;
inline constexpr std::size_t kLargeProbe = 4 << 20;
inline constexpr Nanoseconds kProbeLimit = 50 * kMillisecond;

// Pure. The slower direction counts. Times that make no sense give no costs.
CopyCosts costs_of(const CopyTimes& to_host, const CopyTimes& to_gpu);

// Copies each size in each direction at least once, and begins no further copy after `limit`, which
// begins now. Waits for kernels of the program that run.
Status measure_copies(const Gpus& gpus, Gpu gpu, const Clock& clock, CopyCosts& costs,
                      Nanoseconds limit = kProbeLimit);

// "9.7 us and 55.1 GB/s"
std::string text_of(const CopyCosts& costs);

class CopyProbe {
 public:
  // A shorter measurement on the same GPU, which ends soon after `limit`.
  using First = std::function<void(Gpu gpu, const Clock& clock, Nanoseconds limit)>;

  // `thread` outlives all calls. `first` gets a tenth of the time.
  CopyProbe(std::shared_ptr<Gpus> gpus, DriverThread& thread, Log log, First first)
      : gpus_(std::move(gpus)), thread_(thread), log_(log), first_(std::move(first)) {}

  // The first call for a GPU lets the thread measure. Any thread may call it.
  void prepare(Gpu gpu);
  // The costs of the slowest GPU that was measured. Any thread may call it.
  CopyCosts slowest() const;

 private:
  struct Results {
    std::array<std::atomic<bool>, Gpus::kGpusMax> has_begun{}, has_ended{};
    std::array<CopyCosts, Gpus::kGpusMax> costs;
  };

  const std::shared_ptr<Gpus> gpus_;
  DriverThread& thread_;
  const Log log_;
  const First first_;
  const std::shared_ptr<Results> results_ = std::make_shared<Results>();
};

}  // namespace rdmacoll::cuda
