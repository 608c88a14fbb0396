// Sums of a plan whose times change, and when that asks for new trials.
#include "agreement/drift.h"

#include <gtest/gtest.h>

#include <vector>

namespace rdmacoll {
namespace {

constexpr int kWindow = 4;
constexpr uint64_t kPatience = 10;
constexpr uint64_t kLarge = 1 << 20;

class DriftOfSums : public testing::Test {
 protected:
  // Runs sums of the plan, each of which takes so long.
  void run(int sums, Nanoseconds time) {
    for (int i = 0; i < sums; ++i) {
      const uint64_t sequence = next_++;
      if (!drift_.is_timed(sequence)) continue;
      drift_.started(sequence, now_);
      now_ += time;
      drift_.ended(sequence, now_);
    }
  }
  void begin(std::vector<uint64_t> bytes) { drift_.begin(next_, std::move(bytes)); }

  Drift drift_{kWindow, kPatience};
  uint64_t next_ = 7;
  Nanoseconds now_ = 0;
};

TEST_F(DriftOfSums, shows_when_all_sums_of_a_window_take_longer_or_shorter) {
  for (const Nanoseconds later : {1300, 700}) {
    drift_.forget();
    begin({kLarge});
    run(12, 1000);
    run(3, later);
    EXPECT_FALSE(drift_.has_drifted()) << "the window goes on";
    run(1, later);
    EXPECT_TRUE(drift_.has_drifted()) << later;
  }
}

TEST_F(DriftOfSums, is_none_if_some_sums_take_longer_or_all_of_them_a_little) {
  begin({kLarge});
  run(12, 1000);
  for (int i = 0; i < 20; ++i) {
    run(3, 9000);
    run(1, 1100);
  }
  run(40, 1200);
  run(40, 850);
  EXPECT_FALSE(drift_.has_drifted());
}

// Trials cost time, so they must not take place all the time.
TEST_F(DriftOfSums, counts_after_as_many_sums_as_trials_are_worth) {
  begin({kLarge});
  run(4, 1000);
  run(6, 3000);
  EXPECT_FALSE(drift_.has_drifted());
  run(6, 3000);
  EXPECT_TRUE(drift_.has_drifted());
  drift_.forget();
  run(4, 1000);
  run(6, 3000);
  EXPECT_FALSE(drift_.has_drifted());
}

TEST_F(DriftOfSums, is_of_sums_with_trials_alone) {
  begin({0, kLarge});
  EXPECT_FALSE(drift_.is_timed(7));
  EXPECT_TRUE(drift_.is_timed(8));
  EXPECT_FALSE(drift_.is_timed(9));
  drift_.end();
  EXPECT_FALSE(drift_.is_timed(8)) << "no plan";
}

TEST_F(DriftOfSums, is_of_each_size_by_itself) {
  begin({kLarge, 64 * kLarge});
  for (int i = 0; i < 52; ++i) {
    run(1, 1000);
    run(1, 64'000);
  }
  EXPECT_FALSE(drift_.has_drifted());
  for (int i = 0; i < 4; ++i) {
    run(1, 1000);
    run(1, 90'000);
  }
  EXPECT_TRUE(drift_.has_drifted());
}

// A plan ends for other reasons, too. The machine may change before the next one begins.
TEST_F(DriftOfSums, is_seen_across_two_plans) {
  begin({kLarge});
  run(12, 1000);
  drift_.end();
  next_ += 100;
  begin({2 * kLarge, kLarge});
  run(8, 3000);
  EXPECT_TRUE(drift_.has_drifted());
}

TEST_F(DriftOfSums, forgets_sums_that_a_plan_does_not_end) {
  begin({kLarge});
  drift_.started(next_, now_);
  EXPECT_TRUE(drift_.is_running(next_));
  drift_.end();
  EXPECT_FALSE(drift_.is_running(next_));
}

}  // namespace
}  // namespace rdmacoll
