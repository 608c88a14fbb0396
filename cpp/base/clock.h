// Time is injected, so that the simulator can own it.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace rdmacoll {

using Nanoseconds = int64_t;
inline constexpr Nanoseconds kMicrosecond = 1'000;
inline constexpr Nanoseconds kMillisecond = 1'000'000;
inline constexpr Nanoseconds kSecond = 1'000'000'000;
inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

constexpr Nanoseconds from_seconds(double seconds) {
  return static_cast<Nanoseconds>(seconds * static_cast<double>(kSecond));
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now() const = 0;  // monotonic; any thread
};

// The system's monotonic clock. Where the processor has a counter of its own, a reading is used
// again for ten times as long as it takes: 0.3 us where the kernel maps its clock, and some 10 us
// where every reading is a system call (user-mode Linux, some virtual machines), which a loop that
// polls would otherwise spend its time on.
class SteadyClock final : public Clock {
 public:
  SteadyClock();
  Nanoseconds now() const override;

 private:
  uint64_t fresh_ticks_ = 0;                  // of the processor's counter
  mutable std::atomic<uint64_t> read_at_{0};  // the counter
  mutable std::atomic<Nanoseconds> reading_{0};
};

}  // namespace rdmacoll
