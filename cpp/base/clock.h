// Time is an interface, so that the simulator can own it.
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

// The system's monotonic clock. If the processor has a counter, that extends each reading for a
// thousand times as long as a reading takes. A loop that polls thus does not spend its time on
// readings where each is a system call (user-mode Linux, some virtual machines).
class SteadyClock final : public Clock {
 public:
  SteadyClock();
  Nanoseconds now() const override;

 private:
  Nanoseconds look() const;

  uint64_t reading_ticks_;  // ticks of the processor's counter that a reading takes
  uint64_t first_count_;    // the counter just before the first reading
  Nanoseconds first_;       // the first reading

  // The last reading, for all threads. While the version is odd, a thread is changing it.
  mutable std::atomic<uint32_t> version_{0};
  mutable std::atomic<uint64_t> count_{0};  // the counter just after the reading
  mutable std::atomic<Nanoseconds> reading_{0};
  mutable std::atomic<double> per_tick_{0};   // nanoseconds, measured since the first reading
  mutable std::atomic<Nanoseconds> told_{0};  // the latest time that now() has returned
};

}  // namespace rdmacoll
