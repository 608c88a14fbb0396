#include "base/clock.h"

#include <time.h>

#include <algorithm>

namespace rdmacoll {
namespace {

constexpr uint64_t kFreshReadings = 10;

// 0 where there is no counter.
uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return 0;
#endif
}

Nanoseconds read_clock() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanoseconds>(time.tv_sec) * kSecond + time.tv_nsec;
}

// The quickest of a few: the others were interrupted, or the first of their kind.
uint64_t ticks_of_a_reading() {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 8; ++i) {
    const uint64_t begin = ticks();
    read_clock();
    least = std::min(least, ticks() - begin);
  }
  return least;
}

}  // namespace

SteadyClock::SteadyClock() : fresh_ticks_(kFreshReadings * ticks_of_a_reading()) {}

Nanoseconds SteadyClock::now() const {
  // A reading by another thread may be newer than the count beside it, never older. Counters of two
  // cores that differ make a distance that is huge, and the clock is read.
  const uint64_t count = ticks();
  if (count - read_at_.load(std::memory_order_acquire) < fresh_ticks_) {
    return reading_.load(std::memory_order_relaxed);
  }
  const Nanoseconds now = read_clock();
  Nanoseconds known = reading_.load(std::memory_order_relaxed);
  while (known < now && !reading_.compare_exchange_weak(known, now, std::memory_order_relaxed)) {
  }
  read_at_.store(count, std::memory_order_release);
  return std::max(known, now);
}

}  // namespace rdmacoll
