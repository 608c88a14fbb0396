#include "base/time_slice.h"

#include <gtest/gtest.h>

#include <thread>

namespace rdmacoll {
namespace {

SchedulerAttributes attributes() {
  SchedulerAttributes found;
  EXPECT_EQ(get_scheduler_attributes(found), 0);
  return found;
}

TEST(TimeSlice, is_short_while_the_object_lives_and_as_before_afterwards) {
  std::thread([] {
    const SchedulerAttributes before = attributes();
    {
      ShortTimeSlice slice;
      EXPECT_EQ(attributes().runtime, before.runtime);
      slice.begin();
      slice.begin();
      const SchedulerAttributes now = attributes();
      EXPECT_EQ(now.policy, before.policy);
      EXPECT_EQ(now.nice, before.nice);
      // Kernels before 6.12 have one slice for all.
      if (before.runtime > 0) {
        EXPECT_EQ(now.runtime, 100'000u);
      }
    }
    EXPECT_EQ(attributes().runtime, before.runtime);
    EXPECT_EQ(attributes().nice, before.nice);
  }).join();
}

}  // namespace
}  // namespace rdmacoll
