// The ways of sums within a node: which one is tried, and which one stays.
#include "agreement/trials.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "agreement/trial_times.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr int kRow = 8;
constexpr int kAll = 6 * kRow;  // trials that favour reading in place to the last

using Times = std::function<Nanoseconds(bool is_rival)>;

class TrialsOfSums : public testing::Test {
 protected:
  // Runs sums of two ways one after the other. Returns the ways: u and r (the usual one, its rival)
  // for trials, U and R afterwards.
  std::string run(int sums, uint64_t bytes, const Times& time) {
    std::string taken;
    for (int i = 0; i < sums; ++i) {
      const Trials::Turn turn = trials_.next({.sequence = sequence_}, bytes, ways(2));
      trials_.ended({sequence_++, time(turn.way == 1), 1});
      taken += std::string(turn.is_trial ? "ur" : "UR")[turn.way];
    }
    return taken;
  }
  // Ways with the numbers first, first + 1 ...
  static Trials::Ways ways(std::size_t count, uint32_t first = 0) {
    Trials::Ways numbers(count);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
  // Runs sums of as many ways as there are times. Returns the ways: a, b ... for trials, A, B ...
  // afterwards.
  std::string run(int sums, uint64_t bytes, const std::vector<Nanoseconds>& times,
                  uint32_t first = 0) {
    std::string taken;
    for (int i = 0; i < sums; ++i) {
      const Trials::Turn turn =
          trials_.next({.sequence = sequence_}, bytes, ways(times.size(), first));
      trials_.ended({sequence_++, times[turn.way], 1});
      taken += static_cast<char>((turn.is_trial ? 'a' : 'A') + turn.way);
    }
    return taken;
  }
  // Runs steps of some sums each. A sum of the rival takes half the time, and `step` is the time of
  // a step by the share of its sums that are the rival's. Returns the ways.
  std::string run_steps(int steps, int sums, uint64_t bytes,
                        const std::function<Nanoseconds(double)>& step) {
    std::string taken;
    for (int i = 0; i < steps; ++i) {
      const Nanoseconds began = now_;
      int rivals = 0;
      for (int sum = 0; sum < sums; ++sum) {
        const Trials::Turn turn = trials_.next({sequence_, cat("sum ", sum), now_}, bytes, ways(2));
        const Nanoseconds time = turn.way == 1 ? 100 : 200;
        trials_.ended({sequence_++, time, 1});
        now_ += time;
        rivals += turn.way == 1 ? 1 : 0;
        taken += std::string(turn.is_trial ? "ur" : "UR")[turn.way];
      }
      now_ = began + step(static_cast<double>(rivals) / sums);
    }
    return taken;
  }
  static Times times(Nanoseconds usual, Nanoseconds rival) {
    return [=](bool is_rival) { return is_rival ? rival : usual; };
  }
  // The way that stays if these times come round and round.
  char choice(uint64_t bytes, std::array<Nanoseconds, 4> usual, std::array<Nanoseconds, 4> rival) {
    std::size_t runs = 0;
    const auto time = [&](bool is_rival) { return (is_rival ? rival : usual)[runs++ % 4]; };
    return run(kAll + 1, bytes, time).back();
  }

  Trials trials_{kRow, 1};
  uint64_t sequence_ = 0;
  Nanoseconds now_ = 0;
  std::deque<TrialTime> times_;
};

// "uurrU" as "2u 2r 1U".
std::string lengths(const std::string& ways) {
  std::string text;
  for (std::size_t end = 0; end < ways.size();) {
    const std::size_t begin = std::exchange(end, ways.find_first_not_of(ways[end], end));
    if (end == std::string::npos) end = ways.size();
    text += cat(begin == 0 ? "" : " ", end - begin, std::string(1, ways[begin]));
  }
  return text;
}

TEST_F(TrialsOfSums, go_both_ways_in_turns_and_keep_the_one_that_is_faster_in_each_round) {
  EXPECT_EQ(lengths(run(60, 4 * kMiB, times(200, 100))), "8u 8r 8u 8r 8u 8r 12R");
}

TEST_F(TrialsOfSums, end_with_the_first_round_that_does_not_favour_the_rival) {
  EXPECT_EQ(lengths(run(20, 16 * kMiB, times(100, 200))), "8u 8r 4U");
  int before = 0;
  const auto slower_later = [&](bool is_rival) { return is_rival && ++before <= kRow ? 100 : 200; };
  EXPECT_EQ(lengths(run(40, kMiB, slower_later)), "8u 8r 8u 8r 8U");
}

TEST_F(TrialsOfSums, of_sizes_within_a_power_of_two_are_common) {
  run(kAll, 4 * kMiB, times(200, 100));
  EXPECT_EQ(run(1, 8 * kMiB - 1, times(200, 100)), "R");
  EXPECT_EQ(run(1, 8 * kMiB, times(200, 100)), "u");
  EXPECT_EQ(run(1, 4 * kMiB - 1, times(200, 100)), "u");
}

// One slow time of the rival and one fast time of the usual way may be those of a busy processor.
TEST_F(TrialsOfSums, keep_the_usual_way_if_times_overlap) {
  EXPECT_EQ(choice(1 * kMiB, {200, 200, 200, 200}, {200, 200, 200, 200}), 'U');
  EXPECT_EQ(choice(2 * kMiB, {100, 200, 210, 205}, {190, 150, 900, 180}), 'R');
  EXPECT_EQ(choice(4 * kMiB, {100, 180, 210, 205}, {190, 150, 900, 180}), 'U');
  EXPECT_EQ(choice(8 * kMiB, {100, 200, 210, 205}, {190, 150, 900, 203}), 'U');
}

// The way is cold, and the first sums of a program touch new memory.
TEST_F(TrialsOfSums, do_not_count_the_first_half_of_a_row) {
  const auto choice_of_cold = [&](uint64_t bytes, Nanoseconds usual, Nanoseconds rival) {
    int runs = 0;
    const auto time = [&](bool is_rival) {
      const Nanoseconds cold = runs++ % kRow < kRow / 2 ? 900 : 0;
      return is_rival ? rival : usual + cold;
    };
    return run(kAll + 1, bytes, time).back();
  };
  EXPECT_EQ(choice_of_cold(kMiB, 200, 100), 'R');
  EXPECT_EQ(choice_of_cold(2 * kMiB, 100, 200), 'U');
}

// Sums that begin before the times of a round are here go the usual way, and do not count.
TEST_F(TrialsOfSums, under_way_at_once_are_told_apart) {
  constexpr int kInFlight = 4;
  std::string taken;
  for (int i = 0; i < kAll + 3 * kInFlight; ++i) {
    const Trials::Turn turn = trials_.next({.sequence = sequence_}, kMiB, ways(2));
    taken += std::string(turn.is_trial ? "ur" : "UR")[turn.way];
    const Nanoseconds time = turn.way == 1 ? 500 : 900;
    times_.push_back({sequence_++, time, 1});
    if (times_.size() < kInFlight) continue;
    trials_.ended(times_.front());
    times_.pop_front();
  }
  EXPECT_EQ(lengths(taken), "8u 8r 11u 8r 11u 8r 3u 3R");
}

TEST_F(TrialsOfSums, without_times_do_not_keep_the_way_open_for_ever) {
  uint64_t trials = 0;
  while (trials_.next({.sequence = sequence_++}, kMiB, ways(2)).is_trial) ++trials;
  EXPECT_GT(trials, 500);
  EXPECT_LT(trials, 2000);
  EXPECT_EQ(trials_.next({.sequence = sequence_++}, kMiB, ways(2)).way, 0);
}

// Rank 0 has the same time with both ways.
TEST_F(TrialsOfSums, count_the_time_of_the_slowest_rank) {
  Trials trials(kRow, 3);
  std::string taken;
  for (uint64_t i = 0; i < kAll + 1; ++i) {
    const Trials::Turn turn = trials.next({.sequence = i}, kMiB, ways(2));
    trials.ended({i, 100, 1});
    trials.ended({i, turn.way == 1 ? 200 : 400, 2});
    taken += std::string(turn.is_trial ? "ur" : "UR")[turn.way];
  }
  EXPECT_EQ(lengths(taken), "8u 8r 8u 8r 8u 8r 1R");
}

constexpr Nanoseconds kStep = 100'000;

Nanoseconds slower(double rivals) { return kStep + static_cast<Nanoseconds>(20'000 * rivals); }
Nanoseconds as_long(double rivals) { return kStep + static_cast<Nanoseconds>(2000 * rivals); }
Nanoseconds faster(double rivals) { return kStep - static_cast<Nanoseconds>(100 * rivals); }

// The caller pays for what peers have read, when it writes its array again.
// Steps of trials wait for messages, so small differences do not count.
TEST_F(TrialsOfSums, keep_the_usual_way_if_steps_take_longer_with_the_rival) {
  EXPECT_EQ(lengths(run_steps(50, 1, kMiB, slower)), "8u 8r 8u 8r 8u 8r 2U");
  EXPECT_EQ(lengths(run_steps(50, 1, 2 * kMiB, as_long)), "8u 8r 8u 8r 8u 8r 2R");
  EXPECT_EQ(lengths(run_steps(50, 1, 4 * kMiB, faster)), "8u 8r 8u 8r 8u 8r 2R");
  EXPECT_EQ(run_steps(20, 6, 8 * kMiB, slower).back(), 'U');
  EXPECT_EQ(run_steps(20, 6, 16 * kMiB, as_long).back(), 'R');
}

// Two sizes of a step have their rows at the same time, so their rivals are in the same steps.
TEST_F(TrialsOfSums, keep_a_rival_although_that_of_another_size_loses) {
  const auto ways_of_steps = [&](uint64_t bytes, Nanoseconds rival_of_other) {
    std::string taken;
    for (int step = 0; step < kAll + 1; ++step) {
      for (const uint64_t size : {bytes, 2 * bytes}) {
        const Trials::Turn turn = trials_.next({sequence_, cat("sum ", size), now_}, size, ways(2));
        const bool is_rival = turn.way == 1;
        const Nanoseconds time =
            size == bytes ? (is_rival ? 1000 : 2000) : (is_rival ? rival_of_other : 2000);
        trials_.ended({sequence_++, time, 1});
        now_ += time;
        if (step == kAll) taken += is_rival ? 'R' : 'U';
      }
      now_ += 1000;
    }
    return taken;
  };
  EXPECT_EQ(ways_of_steps(kMiB, 8000), "RU");
  EXPECT_EQ(ways_of_steps(4 * kMiB, 1000), "RR");
}

// Rows of eight sums would tell nothing about steps of twenty.
TEST_F(TrialsOfSums, have_rows_as_long_as_a_step) {
  EXPECT_EQ(lengths(run_steps(9, 20, kMiB, slower)), "8u 8r 28u 24r 24u 24r 24u 24r 16U");
  EXPECT_EQ(lengths(run_steps(9, 20, 2 * kMiB, as_long)), "8u 8r 28u 24r 24u 24r 24u 24r 16R");
  EXPECT_EQ(lengths(run_steps(1, 100, 4 * kMiB, slower)), "8u 8r 8u 8r 8u 8r 52R");
}

// A plan has begun, so the times of a round that had begun do not come.
TEST_F(TrialsOfSums, begin_a_round_again_without_its_times) {
  EXPECT_EQ(lengths(run(2 * kRow + 4, kMiB, times(200, 100))), "8u 8r 4u");
  const uint64_t lost = sequence_;
  trials_.next({.sequence = sequence_++}, kMiB, ways(2));
  trials_.forget_times();
  trials_.ended({lost, 1, 1});
  EXPECT_EQ(lengths(run(4 * kRow + 1, kMiB, times(200, 100))), "8u 8r 8u 8r 1R");
}

// Plans begin between few sums of a size each, as those of an evaluation after each epoch.
TEST_F(TrialsOfSums, go_on_behind_plans_if_all_times_are_here) {
  std::string taken;
  for (int plan = 0; plan < 17; ++plan) {
    taken += run(3, kMiB, times(200, 100));
    trials_.forget_times();
  }
  EXPECT_EQ(lengths(taken), "8u 8r 8u 8r 8u 8r 3R");
}

// The first rival loses against the usual way. The other two win, and the faster one stays.
TEST_F(TrialsOfSums, of_several_rivals_keep_the_fastest_one) {
  EXPECT_EQ(lengths(run(90, kMiB, {200, 300, 150, 100})), "8a 8b 8c 8d 8a 8c 8d 8a 8c 8d 10D");
  EXPECT_EQ(lengths(run(90, 2 * kMiB, {200, 100, 300, 150})), "8a 8b 8c 8d 8a 8b 8d 8a 8b 8d 10B");
  EXPECT_EQ(lengths(run(3, 4 * kMiB, {200})), "3A");
}

// Sizes within a power of two may have different rivals. Their sums come in turns in each step.
TEST_F(TrialsOfSums, of_each_list_of_ways_are_apart) {
  std::string two, three, other;
  for (int i = 0; i < kAll + 1; ++i) {
    two += run(1, kMiB, {200, 100});
    three += run(1, kMiB + 4, {200, 300, 300});
    other += run(1, kMiB + 8, {100, 200}, 1);
  }
  EXPECT_EQ(lengths(two), "8a 8b 8a 8b 8a 8b 1B");
  EXPECT_EQ(lengths(three), "8a 8b 8c 25A");
  EXPECT_EQ(lengths(other), "8a 8b 33A");
}

// The times of two more sums come while the second round is under way.
TEST_F(TrialsOfSums, do_not_count_times_of_another_round) {
  run(2 * kRow - 2, kMiB, times(200, 100));
  const uint64_t old = sequence_;
  for (int i = 0; i < 4; ++i) trials_.next({.sequence = sequence_++}, kMiB, ways(2));
  for (uint64_t i = 0; i < 2; ++i) trials_.ended({old + i, 100, 1});
  EXPECT_EQ(lengths(run(kRow + 4, kMiB, times(200, 100))), "8u 4r");
  for (uint64_t i = 2; i < 4; ++i) trials_.ended({old + i, 500, 1});
  EXPECT_EQ(lengths(run(3 * kRow - 4, kMiB, times(200, 100))), "4r 8u 8r");
  EXPECT_EQ(run(1, kMiB, times(200, 100)), "R");
}

// A rank that has joined sends no readiness, and may take part in many trials meanwhile.
TEST(TimesOfTrials, are_bounded_and_the_newest_ones_stay) {
  TrialTimes times;
  constexpr uint64_t kTrials = 10'000;
  for (uint64_t sequence = 0; sequence < kTrials; ++sequence) times.add({sequence, 5, 1});
  const std::vector<TrialTime> taken = times.take();
  ASSERT_EQ(taken.size(), 4096U);
  EXPECT_EQ(taken.front().sequence, kTrials - taken.size());
  EXPECT_EQ(taken.back().sequence, kTrials - 1);
}

// The ways of before do not count: neither the choice, nor the times of sums that still run.
TEST_F(TrialsOfSums, take_place_again) {
  EXPECT_EQ(run(kAll + 1, kMiB, times(1000, 100)).back(), 'R');
  trials_.restart();
  run(kRow / 2, kMiB, times(100, 1000));
  const uint64_t old = sequence_;
  trials_.next({.sequence = sequence_++}, kMiB, ways(2));
  trials_.restart();
  trials_.ended({old, 1, 1});
  EXPECT_EQ(run(kAll + 1, kMiB, times(100, 1000)).back(), 'U');
  trials_.restart();
  EXPECT_EQ(run(kAll + 1, kMiB, times(1000, 100)).back(), 'R');
}

}  // namespace
}  // namespace rdmacoll
