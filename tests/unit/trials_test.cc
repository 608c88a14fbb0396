// The two ways of large sums within a node: which one is tried, and which one stays.
#include "agreement/trials.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>

#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr int kRow = 8;
constexpr int kAll = 6 * kRow;  // trials that favour reading in place to the last

using Times = std::function<Nanoseconds(bool in_place)>;

class TrialsOfSums : public testing::Test {
 protected:
  // Runs sums one after the other. Returns their ways: s and i for trials, S and I afterwards.
  std::string run(int sums, uint64_t bytes, const Times& time) {
    std::string ways;
    for (int i = 0; i < sums; ++i) {
      const Trials::Way way = trials_.next(sequence_, bytes, now_);
      now_ += time(way.in_place);
      trials_.ended(sequence_++, now_);
      ways += std::string(way.is_trial ? "si" : "SI")[way.in_place ? 1 : 0];
    }
    return ways;
  }
  static Times times(Nanoseconds staged, Nanoseconds in_place) {
    return [=](bool is_in_place) { return is_in_place ? in_place : staged; };
  }
  // The way that stays if these times come round and round.
  char choice(uint64_t bytes, std::array<Nanoseconds, 4> staged,
              std::array<Nanoseconds, 4> in_place) {
    std::size_t runs = 0;
    const auto time = [&](bool is_in_place) {
      return (is_in_place ? in_place : staged)[runs++ % 4];
    };
    return run(kAll + 1, bytes, time).back();
  }

  Trials trials_{kRow};
  uint64_t sequence_ = 0;
  Nanoseconds now_ = 1000;
};

// "ssiiS" as "2s 2i 1S".
std::string lengths(const std::string& ways) {
  std::string text;
  for (std::size_t end = 0; end < ways.size();) {
    const std::size_t begin = std::exchange(end, ways.find_first_not_of(ways[end], end));
    if (end == std::string::npos) end = ways.size();
    text += cat(begin == 0 ? "" : " ", end - begin, std::string(1, ways[begin]));
  }
  return text;
}

TEST_F(TrialsOfSums, go_both_ways_in_turns_and_keep_the_one_that_is_faster_in_each_pair_of_rows) {
  EXPECT_EQ(lengths(run(60, 4 * kMiB, times(200, 100))), "8s 8i 8s 8i 8s 8i 12I");
}

TEST_F(TrialsOfSums, end_with_the_first_pair_of_rows_that_does_not_favour_reading_in_place) {
  EXPECT_EQ(lengths(run(20, 16 * kMiB, times(100, 200))), "8s 8i 4S");
  int in_place_before = 0;
  const auto slower_later = [&](bool in_place) {
    return in_place && ++in_place_before <= kRow ? 100 : 200;
  };
  EXPECT_EQ(lengths(run(40, kMiB, slower_later)), "8s 8i 8s 8i 8S");
}

TEST_F(TrialsOfSums, of_sizes_within_a_power_of_two_are_common) {
  run(kAll, 4 * kMiB, times(200, 100));
  EXPECT_EQ(run(1, 8 * kMiB - 1, times(200, 100)), "I");
  EXPECT_EQ(run(1, 8 * kMiB, times(200, 100)), "s");
  EXPECT_EQ(run(1, 4 * kMiB - 1, times(200, 100)), "s");
}

// One slow time in place and one fast time staged may be those of a busy processor.
TEST_F(TrialsOfSums, keep_the_usual_way_if_times_overlap) {
  EXPECT_EQ(choice(1 * kMiB, {200, 200, 200, 200}, {200, 200, 200, 200}), 'S');
  EXPECT_EQ(choice(2 * kMiB, {100, 200, 210, 205}, {190, 150, 900, 180}), 'I');
  EXPECT_EQ(choice(4 * kMiB, {100, 180, 210, 205}, {190, 150, 900, 180}), 'S');
  EXPECT_EQ(choice(8 * kMiB, {100, 200, 210, 205}, {190, 150, 900, 203}), 'S');
}

// The way is cold, and the first sums of a program touch new memory.
TEST_F(TrialsOfSums, do_not_count_the_first_half_of_a_row) {
  const auto choice_of_cold = [&](uint64_t bytes, Nanoseconds staged, Nanoseconds in_place) {
    int runs = 0;
    const auto time = [&](bool is_in_place) {
      const Nanoseconds cold = runs++ % kRow < kRow / 2 ? 900 : 0;
      return is_in_place ? in_place : staged + cold;
    };
    return run(kAll + 1, bytes, time).back();
  };
  EXPECT_EQ(choice_of_cold(kMiB, 200, 100), 'I');
  EXPECT_EQ(choice_of_cold(2 * kMiB, 100, 200), 'S');
}

TEST_F(TrialsOfSums, under_way_at_once_are_told_apart) {
  for (uint64_t i = 0; i < kAll; ++i) trials_.next(i, kMiB, 100 * static_cast<Nanoseconds>(i));
  const Trials::Way beyond = trials_.next(kAll, kMiB, 100 * kAll);  // the others have not ended
  EXPECT_TRUE(beyond.is_trial);
  EXPECT_FALSE(beyond.in_place);
  for (uint64_t i = kAll + 1; i-- > 0;) {
    const bool in_place = i / kRow % 2 == 1;
    trials_.ended(i, 100 * static_cast<Nanoseconds>(i) + (in_place ? 500 : 900));
  }
  const Trials::Way way = trials_.next(kAll + 1, kMiB, 100 * kAll);
  EXPECT_FALSE(way.is_trial);
  EXPECT_TRUE(way.in_place);
}

TEST_F(TrialsOfSums, that_fail_do_not_keep_the_way_open_for_ever) {
  for (uint64_t i = 0; i < 2 * kAll; ++i) EXPECT_TRUE(trials_.next(i, kMiB, 0).is_trial);
  EXPECT_FALSE(trials_.next(2 * kAll, kMiB, 0).is_trial);
  EXPECT_FALSE(trials_.next(2 * kAll + 1, kMiB, 0).in_place);
}

}  // namespace
}  // namespace rdmacoll
