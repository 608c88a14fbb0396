// Schedules for callers' memory that GPUs have. Only copies touch it, and the results stay right.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "algorithm_names.h"
#include "base/text.h"
#include "collectives/builder.h"
#include "collectives/roll_call.h"
#include "sanitized.h"
#include "unit/schedules.h"

namespace rdmacoll {
namespace {

// Finds a step that touches memory of GPUs otherwise than by a copy between it and work, or from
// input to output. Returns "" if there is none.
std::string touch_of(const Schedule& schedule, const Placement& placement) {
  const auto is_on_gpu = [&](const Slice& slice) {
    return slice.parts > 0 &&
           ((slice.space == Space::input && placement.input == CallerMemory::device) ||
            (slice.space == Space::output && placement.output == CallerMemory::device));
  };
  const auto is_in_work = [](const Slice& slice) { return slice.space == Space::work; };
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    const auto sources = schedule.sources_of(step);
    const bool touches = is_on_gpu(step.to) || std::ranges::any_of(sources, is_on_gpu);
    if (!touches) continue;
    const bool is_copy =
        sources.size() == 1 && !step.final && !step.prescale &&
        ((step.verb == Verb::pack && is_in_work(step.to) && sources[0].space == Space::input) ||
         (step.verb == Verb::unpack && is_in_work(sources[0]) && step.to.space == Space::output));
    const bool stays_there = step.verb == Verb::copy && !step.final && !step.prescale &&
                             is_on_gpu(step.to) && std::ranges::all_of(sources, is_on_gpu);
    if (!is_copy && !stays_there)
      return cat("step ", i, " touches memory of a GPU\n", to_text(schedule));
  }
  return "";
}

class Staging : public testing::TestWithParam<int> {
 protected:
  const AlgorithmRow& row() const { return algorithm_table()[GetParam()]; }
};

// Each rank's memory is of any kind, so ranks with host memory and ranks with GPUs are mixed.
TEST_P(Staging, of_some_ranks_leaves_results_right_and_memory_of_gpus_alone) {
  std::size_t staged = 0;
  for (unsigned seed = 1; seed <= seeds(200); ++seed) {
    std::mt19937_64 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 13);
    const std::vector<int> nodes = nodes_of(ranks, 1 + static_cast<int>(random() % ranks));
    const Shape shape{.ranks = ranks,
                      .root = static_cast<int>(random() % ranks),
                      .prescaled = random() % 2 == 0 && is_sum(row().result),
                      .nodes = nodes,
                      .wide_sums = random() % 2 == 0 && is_sum(row().result)};
    const bool all = random() % 2 == 0, by_nic = random() % 2 == 0, sees = random() % 2 == 0;
    std::vector<Schedule> lowered;
    for (const Schedule& schedule : schedules_of(row(), shape)) {
      Placement placement;
      for (int peer = 0; peer < ranks; ++peer) {
        placement.views.push_back(sees && nodes[peer] == nodes[schedule.rank]);
      }
      placement.nics.assign(ranks, by_nic);
      placement.input = all ? CallerMemory::device : static_cast<CallerMemory>(random() % 3);
      placement.output = all ? CallerMemory::device : static_cast<CallerMemory>(random() % 3);
      lowered.push_back(lower(schedule, placement));
      ASSERT_EQ(touch_of(lowered.back(), placement), "") << row().name << ", seed " << seed;
      staged += lowered.back().uses_work ? 1 : 0;
    }
    ASSERT_EQ(verified(row(), lowered, shape), "")
        << row().name << ", seed " << seed << ", " << ranks << " ranks\n"
        << to_text(lowered[0]);
  }
  EXPECT_GT(staged, 0u);
}

// Verification of results counts input and output as one place. This one does not.
TEST_P(Staging, unpacks_each_part_of_the_output_once_after_it_is_whole) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Schedule plain = row().make({.ranks = ranks, .rank = rank, .root = ranks / 2});
      std::vector<bool> written(plain.parts, false);
      for (const Step& step : plain.steps) {
        if (sends(step.verb) || step.to.space != Space::output) continue;
        std::fill_n(written.begin() + step.to.first_part, step.to.parts, true);
      }
      const Schedule lowered = lower(plain, {.views = std::vector<bool>(ranks, true),
                                             .input = CallerMemory::device,
                                             .output = CallerMemory::device});
      std::vector<bool> unpacked(plain.parts, false);
      for (const Step& step : lowered.steps) {
        for (int part = step.to.first_part; part < step.to.first_part + step.to.parts; ++part) {
          const bool is_copied = step.verb == Verb::copy && step.to.space == Space::output;
          if (step.verb == Verb::unpack || is_copied) {
            ASSERT_FALSE(unpacked[part]) << to_text(lowered);
            unpacked[part] = true;
          } else if (!sends(step.verb) && step.to.space == Space::work) {
            ASSERT_FALSE(unpacked[part]) << to_text(lowered);
          }
        }
      }
      ASSERT_EQ(unpacked, written) << row().name << ", rank " << rank << "\n" << to_text(lowered);
    }
  }
}

// The memory of a segment in parts, as the executor counts it.
int room_of(const Schedule& schedule) {
  int room = (schedule.uses_work ? 1 : 0) + (schedule.uses_sums ? kWide : 0);
  room *= schedule.parts;
  for (const uint16_t parts : schedule.scratch) room += parts;
  return room;
}

// Segments are as long as the pool allows for host memory.
TEST_P(Staging, needs_at_most_one_image_more_than_host_memory) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const bool sees : {false, true}) {
      for (const bool wide : {false, is_sum(row().result)}) {
        Shape shape{.ranks = ranks, .root = ranks / 2, .wide_sums = wide};
        for (shape.rank = 0; shape.rank < ranks; ++shape.rank) {
          const Schedule plain = row().make(shape);
          const auto room = [&](CallerMemory memory) {
            return room_of(lower(plain, {std::vector<bool>(ranks, sees), memory, memory}));
          };
          ASSERT_LE(room(CallerMemory::device), room(CallerMemory::hidden) + plain.parts)
              << row().name << ", rank " << shape.rank << " of " << ranks;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(table, Staging,
                         testing::Range(0, static_cast<int>(algorithm_table().size())),
                         [](const auto& info) {
                           return std::string(algorithm_table()[info.param].name);
                         });

TEST(StagedInput, is_packed_once) {
  for (const Algorithm algorithm : {named::ring, named::direct, named::halving_doubling,
                                    named::recursive_doubling, named::one_shot}) {
    const Schedule plain = make_schedule(algorithm, {.ranks = 5, .rank = 2});
    const Schedule lowered = lower(plain, {.views = std::vector<bool>(5, false),
                                           .input = CallerMemory::device,
                                           .output = CallerMemory::device});
    std::vector<int> packed(lowered.parts, 0);
    for (const Step& step : lowered.steps) {
      for (int i = 0; step.verb == Verb::pack && i < step.to.parts; ++i) {
        ++packed[step.to.first_part + i];
      }
    }
    EXPECT_EQ(packed, std::vector<int>(lowered.parts, 1)) << to_text(lowered);
  }
}

}  // namespace
}  // namespace rdmacoll
