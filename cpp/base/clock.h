// Time is injected, so that the simulator can own it.
#pragma once

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

class SteadyClock final : public Clock {
 public:
  Nanoseconds now() const override;
};

}  // namespace rdmacoll
