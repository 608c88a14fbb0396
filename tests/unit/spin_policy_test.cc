#include "base/spin_policy.h"

#include <gtest/gtest.h>

namespace rdmacoll {
namespace {

constexpr Nanoseconds kMost = 100 * kMicrosecond;

TEST(SpinPolicy, goes_while_it_is_in_vain_and_comes_back_at_once) {
  SpinPolicy policy(kMost);
  EXPECT_EQ(policy.spin(), kMost);
  policy.slept(kMillisecond);
  EXPECT_EQ(policy.spin(), kMost / 2);
  for (int i = 0; i < 100; ++i) policy.slept(kMillisecond);
  EXPECT_EQ(policy.spin(), 5 * kMicrosecond);
  policy.slept(kMost + 50 * kMicrosecond);  // polling would have seen the event
  EXPECT_EQ(policy.spin(), kMost);
}

TEST(SpinPolicy, is_never_more_than_was_asked_for) {
  SpinPolicy none(0);
  none.slept(kMillisecond);
  EXPECT_EQ(none.spin(), 0);
  none.slept(kMicrosecond);
  EXPECT_EQ(none.spin(), 0);
}

TEST(SpinPolicy, counts_a_wait_once_however_often_it_wakes_for_nothing) {
  SpinPolicy policy(kMost);
  Wait wait(policy, 0);
  EXPECT_FALSE(wait.should_sleep(kMost));
  EXPECT_TRUE(wait.should_sleep(kMost + 1));
  for (int i = 0; i < 5; ++i) wait.slept();
  wait.moved(kMillisecond);
  EXPECT_EQ(policy.spin(), kMost / 2);
  wait.moved(3 * kMillisecond);  // found by polling, so the budget stays
  EXPECT_EQ(policy.spin(), kMost / 2);
  EXPECT_FALSE(wait.should_sleep(3 * kMillisecond + kMost / 2));
}

TEST(YieldCost, is_high_for_a_while_after_another_thread_had_the_core) {
  YieldCost cost;
  EXPECT_FALSE(cost.is_high(0));
  cost.yielded(kSecond, kSecond + 100 * kMicrosecond);  // a short turn of a peer
  EXPECT_FALSE(cost.is_high(kSecond + 100 * kMicrosecond));
  const Nanoseconds ended = 2 * kSecond + 3 * kMillisecond;
  cost.yielded(2 * kSecond, ended);
  EXPECT_TRUE(cost.is_high(ended));
  cost.yielded(ended, ended + kMicrosecond);  // one quick yield proves nothing
  EXPECT_TRUE(cost.is_high(ended + 19 * kMillisecond));
  EXPECT_FALSE(cost.is_high(ended + 20 * kMillisecond));
}

TEST(YieldCost, is_asked_less_and_less_while_others_want_the_core) {
  YieldCost cost;
  Nanoseconds now = kSecond;
  const auto lost = [&] {
    cost.yielded(now, now + kMillisecond);
    const Nanoseconds begin = now += kMillisecond;
    while (cost.is_high(now)) now += kMillisecond;
    return (now - begin) / kMillisecond;
  };
  for (const Nanoseconds expected : {20, 40, 80, 160, 320, 640, 1000, 1000}) {
    EXPECT_EQ(lost(), expected);
  }
  cost.yielded(now, now + kMicrosecond);
  EXPECT_EQ(lost(), 20);
}

}  // namespace
}  // namespace rdmacoll
