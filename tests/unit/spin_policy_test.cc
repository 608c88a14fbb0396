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

}  // namespace
}  // namespace rdmacoll
