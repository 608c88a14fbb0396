// A process that is suspended for longer than its peers' timeout.
#include "base/gap.h"

#include <gtest/gtest.h>

namespace rdmacoll {
namespace {

constexpr Nanoseconds kPatience = 5 * kSecond;

TEST(Gaps, are_told_for_a_second) {
  Gap gap;
  Nanoseconds now = 100 * kSecond;
  EXPECT_EQ(gap.turn(now, kPatience), 0);  // it has just begun
  EXPECT_EQ(gap.turn(now += kSecond, kPatience), 0);
  EXPECT_EQ(gap.turn(now += 4 * kSecond, kPatience), 0);
  EXPECT_EQ(gap.turn(now += 7 * kSecond, kPatience), 7 * kSecond);
  EXPECT_EQ(gap.turn(now += kSecond, kPatience), 7 * kSecond);
  EXPECT_EQ(gap.turn(now += 1, kPatience), 0);
}

TEST(Gaps, begin_before_the_last_sign_of_life_is_that_old) {
  Gap gap;
  gap.turn(kSecond, kPatience);
  EXPECT_EQ(gap.turn(5 * kSecond + 1, kPatience), 4 * kSecond + 1);
}

TEST(Gaps, are_the_last_ones) {
  Gap gap;
  gap.turn(kSecond, kPatience);
  gap.turn(10 * kSecond, kPatience);
  EXPECT_EQ(gap.turn(16 * kSecond, kPatience), 6 * kSecond);
}

}  // namespace
}  // namespace rdmacoll
