// The two ways of large sums within a node: which one is tried, and which one stays.
#include "agreement/trials.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace rdmacoll {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class TrialsOfSums : public testing::Test {
 protected:
  // Runs sums one after the other. Returns their ways: s and i for trials, S and I afterwards.
  std::string run(int sums, uint64_t bytes, const std::function<Nanoseconds(bool in_place)>& time) {
    std::string ways;
    for (int i = 0; i < sums; ++i) {
      const Trials::Way way = trials_.next(sequence_, bytes, now_);
      now_ += time(way.in_place);
      trials_.ended(sequence_++, now_);
      ways += std::string(way.is_trial ? "si" : "SI")[way.in_place ? 1 : 0];
    }
    return ways;
  }
  static std::function<Nanoseconds(bool)> times(Nanoseconds staged, Nanoseconds in_place) {
    return [=](bool is_in_place) { return is_in_place ? in_place : staged; };
  }

  Trials trials_;
  uint64_t sequence_ = 0;
  Nanoseconds now_ = 1000;
};

TEST_F(TrialsOfSums, take_both_ways_in_rows_and_then_the_faster_one) {
  EXPECT_EQ(run(16, 4 * kMiB, times(200, 100)), "sssiiisssiiiIIII");
  EXPECT_EQ(run(16, 16 * kMiB, times(100, 200)), "sssiiisssiiiSSSS");
}

TEST_F(TrialsOfSums, of_sizes_within_a_power_of_two_are_common) {
  run(12, 4 * kMiB, times(200, 100));
  EXPECT_EQ(run(1, 8 * kMiB - 1, times(200, 100)), "I");
  EXPECT_EQ(run(1, 8 * kMiB, times(200, 100)), "s");
  EXPECT_EQ(run(1, 4 * kMiB - 1, times(200, 100)), "s");
}

TEST_F(TrialsOfSums, that_differ_by_noise_change_nothing) {
  EXPECT_EQ(run(13, kMiB, times(100'000, 96'000)).back(), 'S');
  EXPECT_EQ(run(13, 2 * kMiB, times(100'000, 94'000)).back(), 'I');
}

// The first sums of a program, and those that wait for a busy processor, take longer.
TEST_F(TrialsOfSums, count_by_the_fastest_of_each_way) {
  int runs = 0;
  const auto time = [&](bool in_place) { return (in_place ? 100 : 200) + (runs++ % 3 ? 900 : 0); };
  EXPECT_EQ(run(13, kMiB, time).back(), 'I');
}

TEST_F(TrialsOfSums, under_way_at_once_are_told_apart) {
  for (uint64_t i = 0; i < 12; ++i) trials_.next(i, kMiB, 100 * static_cast<Nanoseconds>(i));
  EXPECT_TRUE(trials_.next(12, kMiB, 2000).is_trial);  // the others have not ended
  for (uint64_t i = 0; i < 13; ++i) {
    const bool in_place = i / 3 % 2 == 1;
    trials_.ended(i, (i < 12 ? 100 * static_cast<Nanoseconds>(i) : 2000) + (in_place ? 500 : 900));
  }
  const Trials::Way way = trials_.next(13, kMiB, 3000);
  EXPECT_FALSE(way.is_trial);
  EXPECT_TRUE(way.in_place);
}

TEST_F(TrialsOfSums, that_fail_do_not_keep_the_way_open_for_ever) {
  for (uint64_t i = 0; i < 24; ++i) EXPECT_TRUE(trials_.next(i, kMiB, 0).is_trial);
  EXPECT_FALSE(trials_.next(24, kMiB, 0).is_trial);
  EXPECT_FALSE(trials_.next(25, kMiB, 0).in_place);
}

}  // namespace
}  // namespace rdmacoll
