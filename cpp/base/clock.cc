#include "base/clock.h"

#include <time.h>

#include <algorithm>

#include "base/processor_hints.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kFreshReadings = 1000;
// A reading that took this many times the usual time was interrupted: its moment is unknown.
constexpr uint64_t kInterrupted = 4;

Nanoseconds read_clock() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanoseconds>(time.tv_sec) * kSecond + time.tv_nsec;
}

// Returns the quickest of a few readings. The others were interrupted, or met cold caches.
uint64_t ticks_of_a_reading() {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 8; ++i) {
    const uint64_t begin = processor_ticks();
    read_clock();
    least = std::min(least, processor_ticks() - begin);
  }
  return least;
}

}  // namespace

SteadyClock::SteadyClock()
    : reading_ticks_(ticks_of_a_reading()), first_count_(processor_ticks()), first_(read_clock()) {}

Nanoseconds SteadyClock::now() const {
  const uint64_t count = processor_ticks();
  const uint32_t version = version_.load(std::memory_order_acquire);
  const uint64_t passed = count - count_.load(std::memory_order_acquire);
  const double since = static_cast<double>(passed) * per_tick_.load(std::memory_order_acquire);
  const Nanoseconds reading = reading_.load(std::memory_order_acquire);
  const bool is_whole = version % 2 == 0 && version_.load(std::memory_order_relaxed) == version;
  // If the counters of two cores differ, the distance is huge and the reading counts as stale.
  const bool is_fresh = is_whole && passed < kFreshReadings * reading_ticks_;
  const Nanoseconds now = is_fresh ? reading + static_cast<Nanoseconds>(since) : look();
  Nanoseconds told = told_.load(std::memory_order_relaxed);
  while (told < now && !told_.compare_exchange_weak(told, now, std::memory_order_relaxed)) {
  }
  return std::max(told, now);
}

// The counts are taken so that a time computed from them lags behind the system's clock, never
// ahead.
Nanoseconds SteadyClock::look() const {
  const uint64_t before = processor_ticks();
  const Nanoseconds now = read_clock();
  const uint64_t after = processor_ticks();
  uint32_t version = version_.load(std::memory_order_relaxed);
  if (version % 2 == 1 || after - before > kInterrupted * reading_ticks_ ||
      !version_.compare_exchange_strong(version, version + 1, std::memory_order_acquire)) {
    return now;
  }
  count_.store(after, std::memory_order_release);
  reading_.store(now, std::memory_order_release);
  per_tick_.store(static_cast<double>(now - first_) / static_cast<double>(after - first_count_ + 1),
                  std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
  return now;
}

}  // namespace rdmacoll
