// Checks every algorithm, as written and as lowered, for every number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

#include "algorithm_names.h"
#include "base/small_range.h"
#include "base/text.h"
#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/cost.h"
#include "collectives/lower.h"
#include "sanitized.h"
#include "unit/schedules.h"

namespace rdmacoll {
namespace {

class EveryAlgorithm : public testing::TestWithParam<int> {
 protected:
  const AlgorithmRow& row() const { return algorithm_table()[GetParam()]; }
  // The shape of the tests of lowering. The bits 8 and 16 of `form` choose it.
  Shape shape_of(const std::vector<int>& nodes, int form) const {
    const int ranks = static_cast<int>(nodes.size());
    const bool other = form & 8;
    return {.ranks = ranks,
            .root = other ? ranks / 2 : 0,
            .prescaled = other && is_sum(row().result),
            .nodes = nodes,
            .wide_sums = (form & 16) != 0};
  }
};

// Without kAllLargeWorlds, worlds of more than 34 ranks have sizes with one remainder by 6.
TEST_P(EveryAlgorithm, is_right_for_any_number_of_ranks) {
  for (int ranks = 1; ranks <= kRanksMax; ranks += kAllLargeWorlds || ranks < 34 ? 1 : 6) {
    for (const bool wide : {false, is_sum(row().result)}) {
      const Shape shape{.ranks = ranks, .root = ranks / 2, .wide_sums = wide};
      ASSERT_EQ(verified(row(), schedules_of(row(), shape), shape), "")
          << row().name << " with " << ranks << " ranks" << (wide ? ", wide" : "");
    }
  }
}

// Without kAllLargeWorlds, worlds of more than 12 ranks have every seventh rank as root.
TEST_P(EveryAlgorithm, is_right_for_every_root) {
  if (!has_root(row().result)) return;
  for (int ranks = 1; ranks <= kRanksMax; ranks += ranks < 12 ? 1 : 13) {
    for (int root = 0; root < ranks; root += kAllLargeWorlds || ranks <= 12 ? 1 : 7) {
      for (const int form : {0, 1, 2, 3}) {
        if (form > 0 && !is_sum(row().result)) break;
        const Shape shape{.ranks = ranks,
                          .root = root,
                          .prescaled = (form & 1) != 0,
                          .wide_sums = (form & 2) != 0};
        ASSERT_EQ(verified(row(), schedules_of(row(), shape), shape), "")
            << row().name << " with " << ranks << " ranks, root " << root << ", form " << form;
      }
    }
  }
}

TEST_P(EveryAlgorithm, is_right_when_the_input_is_scaled_first) {
  if (!is_sum(row().result)) return;  // only sums are scaled
  for (int ranks = 1; ranks <= 17; ++ranks) {
    const Shape shape{.ranks = ranks, .prescaled = true};
    ASSERT_EQ(verified(row(), schedules_of(row(), shape), shape), "") << ranks;
  }
}

TEST_P(EveryAlgorithm, stays_right_when_lowered_for_any_placement) {
  for (int ranks = 1; ranks <= (kSanitized ? 7 : 13); ++ranks) {
    for (int per_node : {1, 2, 3, ranks}) {
      const std::vector<int> nodes = nodes_of(ranks, per_node);
      for (int form = 0; form < (is_sum(row().result) ? 32 : 16); ++form) {
        const Shape shape = shape_of(nodes, form);
        std::vector<Schedule> lowered;
        for (const Schedule& schedule : schedules_of(row(), shape)) {
          Placement placement;
          for (int peer = 0; peer < ranks; ++peer) {
            placement.views.push_back(nodes[peer] == nodes[schedule.rank]);
          }
          placement.input = host_memory((form & 1) != 0);
          placement.output = host_memory((form & 2) != 0);
          placement.nics.assign(ranks, form & 4);
          if (per_node != 2) placement.lends = placement.views;
          lowered.push_back(lower(schedule, placement));
        }
        ASSERT_EQ(verified(row(), lowered, shape), "")
            << row().name << ", " << ranks << " ranks, " << per_node << " a node, form " << form
            << "\n"
            << to_text(lowered[0]);
      }
    }
  }
}

// The steps that touch callers' memory on GPUs, where NICs access it as `direct` says.
std::string misuse_of_gpus(const Schedule& schedule, const Placement& placement) {
  const auto is_callers = [](const Slice& slice) {
    return slice.space == Space::input || slice.space == Space::output;
  };
  for (const Step& step : schedule.steps) {
    bool touches = is_callers(step.to);
    for (const Slice& source : schedule.sources_of(step)) touches |= is_callers(source);
    if (!touches || step.verb == Verb::pack || step.verb == Verb::unpack) continue;
    const bool is_plain_copy = step.verb == Verb::copy && !step.final && !step.prescale;
    if (is_plain_copy && are_all_of(schedule.sources_of(step), is_callers)) continue;
    const bool is_input = step.to.space == Space::input;
    const bool is_right = (step.verb == Verb::send && (is_input ? placement.direct.reads_input
                                                                : placement.direct.reads_output)) ||
                          (step.verb == Verb::receive && placement.direct.writes_output);
    if (!is_right || placement.views[step.peer] || !placement.nics[step.peer]) {
      return to_text(schedule);
    }
  }
  return "";
}

TEST_P(EveryAlgorithm, stays_right_when_nics_access_memory_of_gpus) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int per_node : {1, 2, 3, ranks}) {
      const std::vector<int> nodes = nodes_of(ranks, per_node);
      for (int form = 0; form < (is_sum(row().result) ? 32 : 16); ++form) {
        const Shape shape = shape_of(nodes, form);
        std::vector<Schedule> lowered;
        for (const Schedule& schedule : schedules_of(row(), shape)) {
          Placement placement;
          for (int peer = 0; peer < ranks; ++peer) {
            placement.views.push_back(nodes[peer] == nodes[schedule.rank]);
            placement.nics.push_back(!placement.views.back());
          }
          if (per_node != 2) placement.lends = placement.views;
          placement.input = placement.output = CallerMemory::device;
          const bool writes = (form & 2) != 0;
          placement.direct = {.reads_input = (form & 1) != 0,
                              .reads_output = writes && (form & 4) != 0,
                              .writes_output = writes};
          lowered.push_back(lower(schedule, placement));
          ASSERT_EQ(misuse_of_gpus(lowered.back(), placement), "") << row().name << " " << form;
        }
        ASSERT_EQ(verified(row(), lowered, shape), "")
            << row().name << ", " << ranks << " ranks, " << per_node << " a node, form " << form
            << "\n"
            << to_text(lowered[0]);
      }
    }
  }
}

// The algorithms of the table read no output by processors that they do not also write by
// processors.
TEST(LoweredForNics, copies_a_tensor_of_a_gpu_there) {
  for (const bool is_output_sent : {false, true}) {
    Builder builder(2, 0, 1);
    builder.copy(builder.output(0), builder.input(0));
    builder.send(1, is_output_sent ? builder.output(0) : builder.input(0));
    Placement placement{.views = {false, false},
                        .input = CallerMemory::device,
                        .output = CallerMemory::device,
                        .nics = {false, true}};
    const Schedule schedule = builder.finish();
    placement.direct = {.reads_input = true, .reads_output = true, .writes_output = true};
    const Schedule direct = lower(schedule, placement);
    EXPECT_FALSE(direct.uses_work) << to_text(direct);
    placement.direct = {};
    const Schedule staged = lower(schedule, placement);
    EXPECT_EQ(misuse_of_gpus(staged, placement), "");
    EXPECT_TRUE(staged.uses_work) << to_text(staged);
  }
}

// A processor scales the sum of one rank.
TEST(LoweredForNics, copies_a_tensor_of_a_gpu_on_the_host_if_it_is_scaled) {
  Builder builder(1, 0, 1);
  builder.copy(builder.output(0), builder.input(0), true);
  const Placement placement{
      .views = {false}, .input = CallerMemory::device, .output = CallerMemory::device};
  const Schedule lowered = lower(builder.finish(), placement);
  EXPECT_EQ(misuse_of_gpus(lowered, placement), "");
  EXPECT_TRUE(lowered.uses_work) << to_text(lowered);
}

TEST(LoweredForNics, receives_no_output_on_a_gpu_that_a_processor_reads) {
  Builder builder(2, 0, 1);
  builder.receive(1, builder.output(0));
  const Slice sum = builder.scratch(0);
  builder.reduce(sum, {builder.input(0), builder.output(0)}, true);
  builder.send(1, sum);
  const Placement placement{
      .views = {false, false},
      .input = CallerMemory::device,
      .output = CallerMemory::device,
      .nics = {false, true},
      .direct = {.reads_input = true, .reads_output = true, .writes_output = true}};
  const Schedule lowered = lower(builder.finish(), placement);
  EXPECT_EQ(misuse_of_gpus(lowered, placement), "");
  EXPECT_TRUE(lowered.uses_work);
}

int parts_in_pool(const Schedule& schedule) {
  int parts = std::accumulate(schedule.scratch.begin(), schedule.scratch.end(), 0);
  if (schedule.uses_work) parts += schedule.parts;
  if (schedule.uses_sums) parts += kWide * schedule.parts;
  return parts;
}

// The engine cuts segments so that those in flight fit into the pool. If sums are wide, it cuts
// them to half of that.
TEST_P(EveryAlgorithm, needs_no_more_memory_than_its_row_says) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (int per_node : {1, 2, 3, ranks}) {
      const std::vector<int> nodes = nodes_of(ranks, per_node);
      for (int form = 0; form < 8; ++form) {
        const bool is_wide = (form & 4) != 0 && is_sum(row().result);
        const Shape shape{.ranks = ranks, .nodes = nodes, .wide_sums = is_wide};
        const LinkModel& links = (form & 1) != 0 ? kSocketLinks : kNicLinks;
        for (const Schedule& schedule :
             lowered_schedules(row().algorithm, shape, links, (form & 2) != 0)) {
          const int most = row().memory(shape) * schedule.parts * (is_wide ? kWide : 1);
          EXPECT_LE(parts_in_pool(schedule), most) << ranks << " " << per_node << " " << form;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(table, EveryAlgorithm,
                         testing::Range(0, static_cast<int>(algorithm_table().size())),
                         [](const auto& info) {
                           return std::string(algorithm_table()[info.param].name);
                         });

// ---- servers beside the ranks ----

constexpr auto kParameterServer = named::parameter_server;

const AlgorithmRow& parameter_server() {
  return *std::find_if(algorithm_table().begin(), algorithm_table().end(),
                       [](const AlgorithmRow& row) { return row.algorithm == kParameterServer; });
}

TEST(ParameterServer, is_right_for_any_number_of_workers_and_servers) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (int servers = 0; servers <= 9; ++servers) {
      for (const bool prescaled : {false, true}) {
        const Shape shape{.ranks = ranks, .prescaled = prescaled, .servers = servers};
        const auto schedules = schedules_of(parameter_server(), shape);
        ASSERT_EQ(static_cast<int>(schedules.size()), ranks + servers);
        ASSERT_EQ(verified(parameter_server(), schedules, shape), "")
            << ranks << " ranks, " << servers << " servers";
      }
    }
  }
}

TEST(ParameterServer, needs_no_more_memory_than_its_row_says) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (int servers = 1; servers <= 9; ++servers) {
      const std::vector<int> nodes = nodes_of(ranks + servers, 3);
      const Shape shape{.ranks = ranks, .nodes = nodes, .servers = servers};
      for (const bool is_visible : {false, true}) {
        for (const Schedule& schedule :
             lowered_schedules(kParameterServer, shape, kSocketLinks, is_visible)) {
          const int most = parameter_server().memory(shape) * schedule.parts;
          EXPECT_LE(parts_in_pool(schedule), most) << ranks << " " << servers;
        }
      }
    }
  }
}

TEST(ParameterServer, stays_right_when_lowered_for_any_placement) {
  for (int form = 0; form < 16; ++form) {
    for (const int per_node : {1, 2, 3, 7}) {
      const Shape shape{.ranks = 5, .prescaled = (form & 8) != 0, .servers = 2};
      const std::vector<int> nodes = nodes_of(shape.members(), per_node);
      std::vector<Schedule> lowered;
      for (const Schedule& schedule : schedules_of(parameter_server(), shape)) {
        Placement placement;
        for (int peer = 0; peer < shape.members(); ++peer) {
          placement.views.push_back(nodes[peer] == nodes[schedule.rank]);
        }
        placement.input = host_memory((form & 1) != 0);
        placement.output = host_memory((form & 2) != 0);
        placement.nics.assign(shape.members(), form & 4);
        lowered.push_back(lower(schedule, placement));
      }
      ASSERT_EQ(verified(parameter_server(), lowered, shape), "")
          << "form " << form << ", " << per_node << " a node\n"
          << to_text(lowered.back());
    }
  }
}

// A server has no caller's memory. It needs memory for its part of each worker, and for the sum.
TEST(ParameterServer, has_neither_input_nor_output) {
  const Shape shape{.ranks = 6, .rank = 7, .prescaled = true, .servers = 3};
  const Schedule schedule = make_schedule(named::parameter_server, shape);
  const auto is_its_own = [](const Slice& slice) { return slice.space == Space::scratch; };
  for (const Step& step : schedule.steps) {
    EXPECT_TRUE(is_its_own(step.to));
    EXPECT_EQ(step.to.parts, 1);
  }
  EXPECT_TRUE(std::all_of(schedule.sources.begin(), schedule.sources.end(), is_its_own));
  EXPECT_EQ(schedule.scratch.size(), 7u);
}

TEST(ParameterServer, begins_at_another_server_for_each_worker) {
  for (int rank = 0; rank < 6; ++rank) {
    const Schedule schedule =
        make_schedule(named::parameter_server, {.ranks = 6, .rank = rank, .servers = 3});
    EXPECT_EQ(schedule.steps.front().peer, 6 + rank % 3);
  }
}

TEST(ParameterServer, that_leaves_a_worker_out_is_refused) {
  const Shape shape{.ranks = 3, .servers = 2};
  auto schedules = schedules_of(parameter_server(), shape);
  schedules[3] = make_schedule(named::parameter_server, {.ranks = 2, .rank = 2, .servers = 2});
  EXPECT_NE(verified(parameter_server(), schedules, shape), "");
}

TEST(Lowering, leaves_no_scratch_when_everybody_sees_everybody) {
  const Schedule schedule = make_schedule(named::ring, {.ranks = 4, .rank = 1});
  Placement placement{.views = std::vector<bool>(4, true)};
  EXPECT_GT(schedule.scratch.size(), 0u);
  EXPECT_EQ(lower(schedule, placement).scratch.size(), 0u);
}

TEST(Lowering, copies_nothing_that_is_visible) {
  Placement placement{.views = std::vector<bool>(2, true)};
  for (const Step& step :
       lower(make_schedule(named::direct, {.ranks = 2, .rank = 0}), placement).steps) {
    EXPECT_TRUE(step.verb != Verb::pack && step.verb != Verb::unpack);
  }
}

TEST(Lowering, packs_only_what_others_must_see) {
  Placement placement{std::vector<bool>(2, true), CallerMemory::hidden, CallerMemory::hidden};
  int packs = 0, unpacks = 0;
  for (const Step& step :
       lower(make_schedule(named::direct, {.ranks = 2, .rank = 0}), placement).steps) {
    packs += step.verb == Verb::pack;
    unpacks += step.verb == Verb::unpack;
  }
  EXPECT_EQ(packs, 2);  // the part that the other rank reduces, and the sum of mine
  EXPECT_EQ(unpacks, 0);
}

// A reduction into memory that a peer has read would wait for each of the memory's cache lines.
TEST(Lowering, makes_results_where_the_caller_wants_them) {
  for (const Algorithm algorithm : {named::direct, named::ring, named::halving_doubling}) {
    const Placement placement{std::vector<bool>(5, true), CallerMemory::hidden,
                              CallerMemory::hidden};
    for (const Step& step :
         lower(make_schedule(algorithm, {.ranks = 5, .rank = 0}), placement).steps) {
      EXPECT_FALSE(step.verb == Verb::reduce && step.to.space == Space::work);
    }
  }
}

TEST(Bruck, sends_a_message_for_each_bit_of_the_number_of_ranks) {
  for (const int ranks : {2, 3, 8, 9, 64}) {
    const Schedule schedule = make_schedule(named::bruck_alltoall, {.ranks = ranks, .rank = 1});
    const auto messages = std::count_if(schedule.steps.begin(), schedule.steps.end(),
                                        [](const Step& step) { return sends(step.verb); });
    EXPECT_EQ(messages, std::bit_width(static_cast<unsigned>(ranks - 1))) << ranks;
  }
}

}  // namespace
}  // namespace rdmacoll
