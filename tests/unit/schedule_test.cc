// Every algorithm, as it is written and as it is lowered, for every number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "base/text.h"
#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/lower.h"
#include "collectives/verify.h"
#include "sanitized.h"

namespace rdmacoll {
namespace {

std::vector<Schedule> schedules_of(const AlgorithmRow& row, Shape shape) {
  std::vector<Schedule> schedules;
  for (shape.rank = 0; shape.rank < shape.members(); ++shape.rank) {
    schedules.push_back(row.make(shape));
  }
  return schedules;
}

std::string verified(const AlgorithmRow& row, const std::vector<Schedule>& schedules,
                     const Shape& shape) {
  return verify(schedules, row.result, shape.root, row.is_canonical(shape));
}

// Ranks that share a node when they are neighbours.
std::vector<int> nodes_of(int ranks, int per_node) {
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / per_node);
  return nodes;
}

class EveryAlgorithm : public testing::TestWithParam<int> {
 protected:
  const AlgorithmRow& row() const { return algorithm_table()[GetParam()]; }
};

TEST_P(EveryAlgorithm, is_right_for_any_number_of_ranks) {
  for (int ranks = 1; ranks <= kRanksMax; ++ranks) {
    const Shape shape{.ranks = ranks, .root = ranks / 2};
    ASSERT_EQ(verified(row(), schedules_of(row(), shape), shape), "")
        << row().name << " with " << ranks << " ranks";
  }
}

TEST_P(EveryAlgorithm, is_right_for_every_root) {
  if (!has_root(row().result)) return;
  for (int ranks = 1; ranks <= kRanksMax; ranks += ranks < 12 ? 1 : 13) {
    for (int root = 0; root < ranks; ++root) {
      for (const bool prescaled : {false, is_sum(row().result)}) {
        const Shape shape{.ranks = ranks, .root = root, .prescaled = prescaled};
        ASSERT_EQ(verified(row(), schedules_of(row(), shape), shape), "")
            << row().name << " with " << ranks << " ranks, root " << root;
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
  for (int ranks = 1; ranks <= 13; ++ranks) {
    for (int per_node : {1, 2, 3, ranks}) {
      const std::vector<int> nodes = nodes_of(ranks, per_node);
      for (int form = 0; form < 16; ++form) {
        const bool other = form & 8;
        const Shape shape{.ranks = ranks,
                          .root = other ? ranks / 2 : 0,
                          .prescaled = other && is_sum(row().result),
                          .nodes = nodes};
        std::vector<Schedule> lowered;
        for (const Schedule& schedule : schedules_of(row(), shape)) {
          Placement placement;
          for (int peer = 0; peer < ranks; ++peer) {
            placement.views.push_back(nodes[peer] == nodes[schedule.rank]);
          }
          placement.input_visible = form & 1;
          placement.output_visible = form & 2;
          placement.devices.assign(ranks, form & 4);
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

INSTANTIATE_TEST_SUITE_P(table, EveryAlgorithm,
                         testing::Range(0, static_cast<int>(algorithm_table().size())),
                         [](const auto& info) {
                           return std::string(algorithm_table()[info.param].name);
                         });

// ---- servers beside the ranks ----

constexpr auto kParameterServer = Algorithm::parameter_server;

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
        placement.input_visible = form & 1;
        placement.output_visible = form & 2;
        placement.devices.assign(shape.members(), form & 4);
        lowered.push_back(lower(schedule, placement));
      }
      ASSERT_EQ(verified(parameter_server(), lowered, shape), "")
          << "form " << form << ", " << per_node << " a node\n"
          << to_text(lowered.back());
    }
  }
}

// It has no memory of a caller's; what it needs is its part of each worker, and the sum.
TEST(ParameterServer, has_neither_input_nor_output) {
  const Shape shape{.ranks = 6, .rank = 7, .prescaled = true, .servers = 3};
  const Schedule schedule = parameter_server_allreduce(shape);
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
    const Schedule schedule = parameter_server_allreduce({.ranks = 6, .rank = rank, .servers = 3});
    EXPECT_EQ(schedule.steps.front().peer, 6 + rank % 3);
  }
}

TEST(ParameterServer, that_leaves_a_worker_out_is_refused) {
  const Shape shape{.ranks = 3, .servers = 2};
  auto schedules = schedules_of(parameter_server(), shape);
  schedules[3] = parameter_server_allreduce({.ranks = 2, .rank = 2, .servers = 2});
  EXPECT_NE(verified(parameter_server(), schedules, shape), "");
}

// ---- two levels ----

constexpr auto kTwoLevel = Algorithm::two_level;

const AlgorithmRow& two_level() {
  return *std::find_if(algorithm_table().begin(), algorithm_table().end(),
                       [](const AlgorithmRow& row) { return row.algorithm == kTwoLevel; });
}

TEST(TwoLevel, is_right_for_nodes_of_any_sizes_and_any_order_of_ranks) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<int> nodes(1 + random() % 24);
    const unsigned count = 1 + random() % 6;
    for (int& node : nodes) node = static_cast<int>(random() % count);
    if (seed % 2 == 0) std::sort(nodes.begin(), nodes.end());
    const Shape shape{.ranks = static_cast<int>(nodes.size()), .nodes = nodes};
    ASSERT_EQ(verified(two_level(), schedules_of(two_level(), shape), shape), "")
        << "seed " << seed << ": nodes " << join(nodes, " ");
  }
}

TEST(TwoLevel, is_canonical_where_nodes_are_powers_of_two_of_consecutive_ranks) {
  for (int ranks = 1; ranks <= 33; ++ranks) {
    for (const int per_node : {1, 2, 4, 8}) {
      const std::vector<int> nodes = nodes_of(ranks, per_node);
      EXPECT_TRUE(is_canonical(kTwoLevel, {.ranks = ranks, .nodes = nodes})) << ranks;
    }
  }
  for (const std::vector<int>& nodes : std::vector<std::vector<int>>{
           {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 1}, {0, 0, 1, 1, 0}, {0, 0, 1, 2, 2}}) {
    const Shape shape{.ranks = static_cast<int>(nodes.size()), .nodes = nodes};
    EXPECT_FALSE(is_canonical(kTwoLevel, shape)) << join(nodes, " ");
    // Nor would the verifier let them pass as such.
    EXPECT_NE(verify(schedules_of(two_level(), shape), AlgorithmRow::Result::sum, 0, true), "")
        << join(nodes, " ");
  }
}

// Parts that each rank sends to other nodes.
std::vector<int> parts_across(const Shape& shape) {
  std::vector<int> parts(shape.ranks, 0);
  for (const Schedule& schedule : schedules_of(two_level(), shape)) {
    for (const Step& step : schedule.steps) {
      if (sends(step.verb) && shape.node_of(step.peer) != shape.node_of(schedule.rank)) {
        parts[schedule.rank] += step.to.parts;
      }
    }
  }
  return parts;
}

TEST(TwoLevel, ranks_of_a_node_share_what_goes_to_other_nodes) {
  const std::vector<int> nodes = even_nodes(16, 4);
  const std::vector<int> parts = parts_across({.ranks = 16, .nodes = nodes});
  for (const int part : parts) EXPECT_EQ(part, parts[0]);
  const std::vector<int> unequal = {0, 0, 0, 1, 1, 1, 1, 1};
  const std::vector<int> sent = parts_across({.ranks = 8, .nodes = unequal});
  for (int rank = 1; rank < 3; ++rank) EXPECT_EQ(sent[rank], sent[0]);
  for (int rank = 4; rank < 8; ++rank) EXPECT_EQ(sent[rank], sent[3]);
  EXPECT_EQ(sent[0] * 3, sent[3] * 5);  // each node sends as much as the other
}

TEST(Lowering, leaves_no_scratch_when_everybody_sees_everybody) {
  const Schedule schedule = ring_allreduce({.ranks = 4, .rank = 1});
  Placement placement{.views = std::vector<bool>(4, true)};
  EXPECT_GT(schedule.scratch.size(), 0u);
  EXPECT_EQ(lower(schedule, placement).scratch.size(), 0u);
}

TEST(Lowering, copies_nothing_that_is_visible) {
  Placement placement{.views = std::vector<bool>(2, true)};
  for (const Step& step : lower(direct_allreduce({.ranks = 2, .rank = 0}), placement).steps) {
    EXPECT_TRUE(step.verb != Verb::pack && step.verb != Verb::unpack);
  }
}

TEST(Lowering, packs_only_what_others_must_see) {
  Placement placement{std::vector<bool>(2, true), false, false};
  int packs = 0, unpacks = 0;
  for (const Step& step : lower(direct_allreduce({.ranks = 2, .rank = 0}), placement).steps) {
    packs += step.verb == Verb::pack;
    unpacks += step.verb == Verb::unpack;
  }
  EXPECT_EQ(packs, 2);  // the part that the other rank reduces, and the sum of mine
  EXPECT_EQ(unpacks, 0);
}

// A reduction into memory that a peer has read would wait for each of its lines.
TEST(Lowering, makes_results_where_the_caller_wants_them) {
  for (const auto make : {direct_allreduce, ring_allreduce, halving_doubling_allreduce}) {
    const Placement placement{std::vector<bool>(5, true), false, false};
    for (const Step& step : lower(make({.ranks = 5, .rank = 0}), placement).steps) {
      EXPECT_FALSE(step.verb == Verb::reduce && step.to.space == Space::work);
    }
  }
}

// The verifier must find what it is there for.
class Verifier : public testing::Test {
 protected:
  std::vector<Schedule> ring() const { return schedules_of(algorithm_table()[0], {.ranks = 3}); }
  std::string check(const std::vector<Schedule>& schedules) const {
    return verified(algorithm_table()[0], schedules, {.ranks = 3});
  }
};

TEST_F(Verifier, accepts_the_ring) { EXPECT_EQ(check(ring()), ""); }

TEST_F(Verifier, finds_a_receive_without_a_send) {
  auto schedules = ring();
  schedules[1].steps[0].peer = 0;
  EXPECT_NE(check(schedules), "");
}

TEST_F(Verifier, finds_a_missing_dependency) {
  for (std::size_t i = 0; i < ring()[0].steps.size(); ++i) {
    auto schedules = ring();
    if (schedules[0].steps[i].afters == 0) continue;
    schedules[0].steps[i].afters = 0;
    EXPECT_NE(check(schedules), "") << "step " << i;
  }
}

TEST_F(Verifier, finds_a_contribution_that_counts_twice) {
  auto schedules = ring();
  for (Step& step : schedules[0].steps) {
    if (step.verb == Verb::reduce)
      schedules[0].sources[step.first_source] = schedules[0].sources[step.first_source + 1];
  }
  EXPECT_NE(check(schedules), "");
}

TEST_F(Verifier, finds_a_result_that_was_not_rounded) {
  auto schedules = ring();
  for (Step& step : schedules[2].steps) step.final = false;
  EXPECT_NE(check(schedules), "");
}

TEST_F(Verifier, finds_a_deadlock_of_waiting_steps) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) {  // both receive first, and both sends wait for that
    Builder program(2, rank, 1);
    const Slice landed = program.scratch(0);
    program.receive(1 - rank, landed);
    program.reduce(program.output(0), {landed, program.input(0)}, true);
    program.send(1 - rank, program.output(0));
    schedules.push_back(program.finish());
  }
  EXPECT_NE(check(schedules).find("never gets past"), std::string::npos);
}

TEST_F(Verifier, finds_two_that_wait_for_each_others_views) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) {  // in place: the sum overwrites what the other still reads
    Builder program(2, rank, 1);
    program.publish(1 - rank, program.input(0));
    const Slice view = program.await(1 - rank, 0, 1);
    program.reduce(program.output(0), {program.input(0), view}, true);
    schedules.push_back(program.finish());
  }
  EXPECT_NE(check(schedules).find("never gets past"), std::string::npos);
}

TEST(Bruck, sends_a_message_for_each_bit_of_the_number_of_ranks) {
  for (const int ranks : {2, 3, 8, 9, 64}) {
    const Schedule schedule = bruck_alltoall({.ranks = ranks, .rank = 1});
    const auto messages = std::count_if(schedule.steps.begin(), schedule.steps.end(),
                                        [](const Step& step) { return sends(step.verb); });
    EXPECT_EQ(messages, std::bit_width(static_cast<unsigned>(ranks - 1))) << ranks;
  }
}

TEST_F(Verifier, finds_a_part_that_is_gathered_to_the_wrong_place) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 3; ++rank) {
    schedules.push_back(bruck_alltoall({.ranks = 3, .rank = rank}));
  }
  EXPECT_EQ(verify(schedules, AlgorithmRow::Result::exchange, 0, true), "");
  Schedule& one = schedules[1];
  const Step& last = one.steps.back();
  std::swap(one.sources[last.first_source], one.sources[last.first_source + 1]);
  EXPECT_NE(verify(schedules, AlgorithmRow::Result::exchange, 0, true), "");
}

TEST_F(Verifier, finds_what_goes_to_the_wrong_rank) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 3; ++rank) {
    schedules.push_back(pairwise_alltoall({.ranks = 3, .rank = rank}));
  }
  const auto exchange = [&] { return verify(schedules, AlgorithmRow::Result::exchange, 0, true); };
  EXPECT_EQ(exchange(), "");
  for (Step& step : schedules[1].steps) {
    if (step.verb == Verb::send) step.to.first_part = step.peer == 0 ? 2 : 0;
  }
  EXPECT_NE(exchange(), "");
}

TEST_F(Verifier, finds_a_sum_at_another_rank_than_the_root) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 4; ++rank) {
    schedules.push_back(binomial_reduce({.ranks = 4, .rank = rank, .root = 2}));
  }
  EXPECT_EQ(verify(schedules, AlgorithmRow::Result::root_sum, 2, true), "");
  EXPECT_NE(verify(schedules, AlgorithmRow::Result::root_sum, 1, true), "");
  EXPECT_NE(verify(schedules, AlgorithmRow::Result::sum, 2, true), "");
}

TEST_F(Verifier, finds_a_sum_out_of_canonical_order) {
  EXPECT_NE(verify(ring(), AlgorithmRow::Result::sum, 0, true).find("canonical"),
            std::string::npos);
}

}  // namespace
}  // namespace rdmacoll
