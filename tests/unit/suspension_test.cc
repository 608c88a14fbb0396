// A process that is suspended for longer than its peers' timeout.
#include "base/suspension.h"

#include <gtest/gtest.h>

namespace rdmacoll {
namespace {

constexpr Nanoseconds kTimeout = 5 * kSecond;

TEST(Suspensions, are_told_for_a_second) {
  SuspensionDetector detector;
  Nanoseconds now = 100 * kSecond;
  EXPECT_EQ(detector.turn(now, kTimeout), 0);  // it has just begun
  EXPECT_EQ(detector.turn(now += kSecond, kTimeout), 0);
  EXPECT_EQ(detector.turn(now += 4 * kSecond, kTimeout), 0);
  EXPECT_EQ(detector.turn(now += 7 * kSecond, kTimeout), 7 * kSecond);
  EXPECT_EQ(detector.turn(now += kSecond, kTimeout), 7 * kSecond);
  EXPECT_EQ(detector.turn(now += 1, kTimeout), 0);
}

TEST(Suspensions, begin_before_the_last_sign_of_life_is_that_old) {
  SuspensionDetector detector;
  detector.turn(kSecond, kTimeout);
  EXPECT_EQ(detector.turn(5 * kSecond + 1, kTimeout), 4 * kSecond + 1);
}

TEST(Suspensions, are_the_last_ones) {
  SuspensionDetector detector;
  detector.turn(kSecond, kTimeout);
  detector.turn(10 * kSecond, kTimeout);
  EXPECT_EQ(detector.turn(16 * kSecond, kTimeout), 6 * kSecond);
}

}  // namespace
}  // namespace rdmacoll
