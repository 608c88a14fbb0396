#include "base/clock.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace rdmacoll {
namespace {

Nanoseconds system_now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanoseconds>(time.tv_sec) * kSecond + time.tv_nsec;
}

TEST(SteadyClock, is_never_ahead_and_catches_up) {
  const SteadyClock clock;
  for (int i = 0; i < 1000; ++i) {
    const Nanoseconds reading = clock.now();
    EXPECT_LE(reading, system_now());
  }
  const Nanoseconds before = system_now();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // no reading lives as long
  EXPECT_GT(clock.now(), before);
}

TEST(SteadyClock, never_goes_back_in_a_thread) {
  const SteadyClock clock;
  std::vector<std::thread> threads;
  std::atomic<int> steps_back{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Nanoseconds last = 0;
      for (int reading = 0; reading < 100'000; ++reading) {
        const Nanoseconds now = clock.now();
        if (now < last) ++steps_back;
        last = now;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(steps_back, 0);
}

}  // namespace
}  // namespace rdmacoll
