// Trials in jobs on a simulated node.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "collectives/choose.h"
#include "sim/node_job.h"

namespace rdmacoll {
namespace {

// Each changes one number of a profile by a factor of ten.
struct Wrong {
  std::string name;
  NodeMemory profile;
};

void scale(MemoryRate& rate, double factor) {
  for (double* number : {&rate.cached, &rate.beyond, &rate.beyond_all, &rate.shared}) {
    *number *= factor;
  }
}

std::vector<Wrong> wrong_profiles() {
  constexpr double kFactor = 10;
  std::vector<Wrong> all;
  const auto add = [&](const std::string& name, const auto& change) {
    change(all.emplace_back(Wrong{name, {}}).profile);
  };
  const auto scale_copies = [](NodeMemory& memory, double factor) {
    scale(memory.copy, factor);
    memory.lent_bytes_per_us *= factor;
  };
  add("copies are too dear", [&](NodeMemory& memory) { scale_copies(memory, 1 / kFactor); });
  add("copies are too cheap", [&](NodeMemory& memory) { scale_copies(memory, kFactor); });
  add("sums are too dear", [](NodeMemory& memory) { scale(memory.reduce, 1 / kFactor); });
  add("sums are too cheap", [](NodeMemory& memory) { scale(memory.reduce, kFactor); });
  add("reads are too dear", [](NodeMemory& memory) { memory.read_page_us *= kFactor; });
  add("messages are too dear", [](NodeMemory& memory) { memory.round_us *= kFactor; });
  add("messages are too cheap", [](NodeMemory& memory) { memory.round_us /= kFactor; });
  return all;
}

double last_step_us(const NodeJobResult& result) {
  EXPECT_EQ(result.error, "");
  return result.step_us.back();
}

std::string names_of(const std::vector<Movement>& movements) {
  std::string text;
  for (const Movement& movement : movements) {
    text += cat(" ", name_of(movement.algorithm), movement.in_place ? " in place" : "");
  }
  return text;
}

// A step has several sums of one size, so its trials take few steps. Trials run alone, and the sums
// of a step side by side. So a draw in trials may be up to 5 % of a step.
TEST(TrialsOfJobs, end_at_the_right_choice_within_20_steps_of_a_wrong_profile) {
  int mended = 0;
  for (const int ranks : {2, 4}) {
    for (const uint64_t bytes : {96 << 10, 256 << 10, 1 << 20, 4 << 20}) {
      NodeJob job{.ranks = ranks, .sums = 6, .bytes = bytes, .steps = 20, .tune = Tune::off};
      const double right = last_step_us(run_node_job(job));
      for (const Wrong& wrong : wrong_profiles()) {
        job.profile = wrong.profile;
        job.tune = Tune::off;
        mended += last_step_us(run_node_job(job)) > 1.05 * right ? 1 : 0;
        job.tune = Tune::start;
        const NodeJobResult result = run_node_job(job);
        const std::string what = cat(ranks, " ranks, ", bytes, " bytes, ", wrong.name, ":",
                                     names_of(result.movements.back()));
        EXPECT_LE(last_step_us(result), 1.05 * right) << what;
        EXPECT_LT(result.steps_before_plan, job.steps) << what;
      }
    }
  }
  EXPECT_GT(mended, 12);
}

// The slow rank's copies and sums take four times as long. Rank 0 does not wait for it in all
// algorithms, so its own time would often choose recursive doubling.
TEST(TrialsOfJobs, count_the_times_of_all_ranks) {
  for (const int ranks : {2, 4}) {
    for (int slow = 0; slow < ranks; ++slow) {
      for (const uint64_t bytes : {128 << 10, 1 << 20, 4 << 20}) {
        NodeJob job{.ranks = ranks, .sums = 6, .bytes = bytes, .steps = 8, .algorithm = "direct"};
        job.slow.assign(static_cast<std::size_t>(ranks), 1.0);
        job.slow[static_cast<std::size_t>(slow)] = 4;
        const double direct = last_step_us(run_node_job(job));
        job.algorithm = "";
        job.steps = 24;
        const NodeJobResult result = run_node_job(job);
        EXPECT_LE(last_step_us(result), 1.05 * direct)
            << ranks << " ranks, rank " << slow << " is slow, " << bytes
            << " bytes:" << names_of(result.movements.back());
        EXPECT_LT(result.steps_before_plan, job.steps);
      }
    }
  }
}

// How many times as long rank 0's step, and the shortest of its sums, take beside a rank that has
// become four times as slow.
struct Shift {
  double step, sum;
};

Shift shift_beside(NodeJob job, int slow) {
  constexpr int kQuick = 20, kSlow = 20, kBeginning = 5;  // steps
  job.is_free = true;
  job.steps = kQuick + kSlow;
  job.slow.assign(static_cast<std::size_t>(job.ranks), 1.0);
  job.slow[static_cast<std::size_t>(slow)] = 4;
  job.slow_from = kQuick;
  const NodeJobResult result = run_node_job(job);
  EXPECT_EQ(result.error, "");
  const auto shift = [](const std::vector<double>& times) {
    const auto slow_begin = times.begin() + kQuick;
    return *std::min_element(slow_begin + 2, times.end()) /
           *std::min_element(times.begin() + kBeginning, slow_begin);
  };
  return {shift(result.step_us), shift(result.least_us)};
}

// Drift is noticed by the least time of rank 0's sums. Each sum needs the data of all ranks, so
// rank 0 waits for a slow one: in this sum, or in the next.
TEST(TrialsOfJobs, show_each_slow_rank_in_the_times_of_rank_0) {
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.result != AlgorithmRow::Result::sum || row.cost_in_node == nullptr) continue;
    for (const int ranks : {2, 4, 5}) {
      for (const int sums : {1, 4}) {
        for (const uint64_t bytes : {64 << 10, 1 << 20}) {
          const NodeJob job{
              .ranks = ranks, .sums = sums, .bytes = bytes, .algorithm = std::string(row.name)};
          for (int slow = 0; slow < ranks; ++slow) {
            const Shift shift = shift_beside(job, slow);
            EXPECT_GT(shift.sum, std::max(1.5, 0.85 * shift.step))
                << row.name << ", " << ranks << " ranks, " << sums << " sums of " << bytes
                << " bytes, rank " << slow << " is slow";
          }
        }
      }
    }
  }
}

// The number of different movements.
std::size_t count_of(const NodeJobResult& result) {
  std::vector<Movement> different;
  for (const std::vector<Movement>& step : result.movements) {
    for (const Movement& movement : step) {
      if (std::ranges::find(different, movement) == different.end()) different.push_back(movement);
    }
  }
  return different.size();
}

// The values depend on the order of additions, as the ring shows.
TEST(TrialsOfJobs, change_no_bit_of_a_sum) {
  for (const int ranks : {3, 4, 5}) {
    NodeJob job{.ranks = ranks, .sums = 2, .steps = 60, .moves_bytes = true};
    for (const bool is_canonical : {false, true}) {
      job.canonical = is_canonical;
      for (const uint64_t bytes : {72 << 10, 1 << 20}) {
        job.bytes = bytes;
        const NodeJobResult result = run_node_job(job);
        const std::string what =
            cat(ranks, " ranks, ", bytes, " bytes, ", is_canonical ? "canonical" : "run");
        EXPECT_EQ(result.error, "") << what;
        EXPECT_TRUE(result.is_equal) << what;
        EXPECT_TRUE(result.is_canonical) << what;
        EXPECT_GT(count_of(result), 1) << what;
      }
    }
    job.canonical = false;
    job.algorithm = "ring";
    job.steps = 5;
    const NodeJobResult ring = run_node_job(job);
    EXPECT_TRUE(ring.is_equal);
    EXPECT_FALSE(ring.is_canonical) << "the values depend on no order";
    EXPECT_EQ(count_of(ring), 1);
  }
}

// Writes that peers see may try to go past the caches, in rows of their own. Trials of ways would
// take these times for those of the ways.
TEST(TrialsOfJobs, try_no_ways_to_write) {
  const NodeJob job{.ranks = 2, .sums = 1, .bytes = 64 << 10, .steps = 100};
  const NodeJobResult result = run_node_job(job);
  EXPECT_EQ(result.error, "");
  ASSERT_GE(result.steps_before_plan, 2 * Tuning().trial_row);
  ASSERT_LT(result.steps_before_plan, job.steps - 1);
  for (int step = 0; step < 2 * Tuning().trial_row; ++step) {
    EXPECT_EQ(result.trying_writes[static_cast<std::size_t>(step)], 0) << step;
  }
  EXPECT_GT(result.trying_writes.back(), 0);
}

// The rows of three rounds have that many sums, and a plan begins when a trial is one period back.
TEST(TrialsOfJobs, with_one_sum_a_step_take_a_step_for_each_trial) {
  NodeJob job{.ranks = 2, .sums = 1, .bytes = 4 << 20, .steps = 100, .tune = Tune::off};
  const double usual = last_step_us(run_node_job(job));
  job.tune = Tune::start;
  const NodeJobResult result = run_node_job(job);
  EXPECT_LT(last_step_us(result), usual);
  EXPECT_TRUE(result.movements.back().back().in_place);
  EXPECT_GT(result.steps_before_plan, 3 * 2 * Tuning().trial_row);
  EXPECT_LT(result.steps_before_plan, 4 * 3 * Tuning().trial_row);
}

}  // namespace
}  // namespace rdmacoll
