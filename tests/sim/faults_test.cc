// Simulates thousands of orders of events that are very rare in production.
#include <gtest/gtest.h>

#include "sanitized.h"
#include "sim/script.h"
#include "sim/simulator.h"

namespace rdmacoll {
namespace {

TEST(SimulatedFaults, end_with_right_sums_or_the_right_error) {
  uint64_t plans = 0, plans_left = 0, caught_up = 0, replayed = 0, shared = 0, by_servers = 0;
  uint64_t refused = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimOutcome outcome = simulate(seed);
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.scenario << "\n"
                              << outcome.hang << outcome.wrong << outcome.unnamed;
    plans += outcome.plans;
    plans_left += outcome.plans_left;
    (make_script(seed).servers > 0 ? by_servers : shared) += outcome.shared;
    caught_up += outcome.caught_up;
    replayed += outcome.replayed;
    refused += outcome.refused;
  }
  // Ranks have begun plans, left them, and been at different places then.
  EXPECT_GT(plans, 100u);
  EXPECT_GT(plans_left, 50u);
  EXPECT_GT(shared, 100u);
  EXPECT_GT(by_servers, 50u);
  EXPECT_GT(caught_up, 20u);
  EXPECT_GT(replayed, 5u);
  // Ranks have received messages of an earlier world.
  EXPECT_GT(refused, 30u);
}

// A rank never takes the message of an earlier world for one of its own world, even with the same
// ranks and operations. The world either ends with an error or ignores the message.
TEST(SimulatedWorlds, do_not_believe_words_of_an_earlier_one) {
  uint64_t refused = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SimScript script;
    script.ranks = 3;
    script.plan_repeats = seed % 2 == 0 ? 2 : 0;
    script.segment_bytes = 4096;
    script.network.seed = seed;
    script.late_messages = 2;
    script.phases.insert(script.phases.end(), 8, {{.name = "sum", .shapes = {{30}}}});
    const SimOutcome outcome = simulate(script);
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.hang << outcome.wrong
                              << outcome.unnamed << outcome.overslept;
    refused += outcome.refused;
  }
  EXPECT_GT(refused, 60u);
}

// A rank may start an operation with shared results after the connection to the root has ended, and
// before that is reported.
TEST(SimulatedFaults, end_well_where_a_start_meets_a_connection_that_has_ended) {
  const SimOutcome outcome = simulate(7884);
  EXPECT_TRUE(outcome.ok()) << outcome.scenario << "\n" << outcome.hang << outcome.unnamed;
}

// A rank starts an operation by a plan. The verdict on the plan's end may reach it before the
// root's answer to this operation. The late answer must not match the rank's next operation of this
// name.
TEST(SimulatedFaults, end_well_where_a_verdict_overtakes_an_answer) {
  const SimOutcome outcome = simulate(3809);
  EXPECT_TRUE(outcome.ok()) << outcome.scenario << "\n" << outcome.hang << outcome.unnamed;
}

// Rank 4 waits for data of ranks 2 and 3, whose pair breaks, and has no connection to them. All
// other ranks have their results and leave. They know of the failure, and rank 4 must not blame one
// of them.
TEST(SimulatedFaults, reach_a_rank_through_ranks_that_leave) {
  uint64_t failed = 0;
  for (uint64_t seed = 0; seed < seeds(600); ++seed) {
    SimScript script;
    script.ranks = 9;
    script.segment_bytes = 4096;
    script.network.seed = seed;
    script.network.delay_max = 50 * kMicrosecond;
    const SimOperation sum{
        .kind = Kind::reduce, .root = 4, .name = "sum", .shapes = {{159, 1}, {150, 2}, {141, 3}}};
    script.phases.assign(2, {sum});
    script.fault = seed % 2 == 0 ? Fault::cut : Fault::kill;
    script.victim = 2;
    script.partner = 3;
    script.fault_at = static_cast<Nanoseconds>(400 + seed % 300) * kMicrosecond;
    const SimOutcome outcome = simulate(script);
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.scenario << "\n"
                              << outcome.hang << outcome.wrong << outcome.unnamed;
    failed += outcome.failed;
  }
  EXPECT_GT(failed, seeds(600));
}

// A rank leaves, and so the world of another one fails and its connections end. The leaving rank
// must not name that one.
TEST(SimulatedFaults, name_no_rank_that_ends_because_this_one_leaves) {
  for (const uint64_t seed : {181u, 382u}) {
    const SimOutcome outcome = simulate(seed);
    EXPECT_TRUE(outcome.ok()) << outcome.scenario << "\n" << outcome.hang << outcome.unnamed;
  }
}

// A rank without memory for a result says so, and the other ranks name this rank.
TEST(SimulatedFaults, name_a_rank_without_memory_for_a_result) {
  for (const Kind kind : {Kind::allreduce, Kind::allgather, Kind::reducescatter, Kind::alltoall,
                          Kind::gather, Kind::scatter}) {
    SimScript script;
    script.ranks = 3;
    script.segment_bytes = 4096;
    script.fault = Fault::refuse;
    script.victim = 1;
    SimOperation operation{.kind = kind, .name = "result", .shapes = {{6}}};
    if (row_of(kind).first_may_differ) {
      const bool is_split = kind == Kind::alltoall || kind == Kind::scatter;
      operation.rows.assign(3, std::vector<int64_t>(is_split ? 3 : 1, 2));
    }
    script.phases = {{operation}};
    const SimOutcome outcome = simulate(script);
    EXPECT_TRUE(outcome.ok()) << outcome.hang << outcome.wrong << outcome.unnamed;
    EXPECT_GT(outcome.failed, 0u) << name_of(kind);
  }
}

// Simulates an alltoall. If `outside` is positive, the alltoall runs in a set, and so many ranks of
// the world are outside this set. The set's ranks then have other numbers in the world.
SimOutcome simulate_alltoall(int ranks, std::vector<int64_t> shape, bool is_even, int outside = 0) {
  SimScript script;
  script.ranks = ranks + outside;
  script.network.views = false;
  script.segment_bytes = 4 << 20;
  SimOperation& operation = script.phases.emplace_back().emplace_back();
  operation.kind = Kind::alltoall;
  operation.name = "exchange";
  if (outside > 0) {
    auto& set = script.sets.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) set.push_back(outside + rank);
    script.first_sets = 1;
    operation.set = 1;
    script.phases.push_back({{.kind = Kind::barrier}});  // no rank leaves before all are done
  }
  operation.shapes = {std::move(shape)};
  for (int rank = 0; rank < ranks; ++rank) {
    auto& rows = operation.rows.emplace_back();
    for (int peer = 0; peer < ranks; ++peer) {
      rows.push_back(is_even ? 1 : (rank * 3 + peer * 5) % 7);
    }
  }
  return simulate(script);
}

// The root tells each rank its own received rows, and not the rows between other ranks.
TEST(SimulatedWorlds, of_many_ranks_exchange_uneven_parts) {
  const SimOutcome outcome = simulate_alltoall(60, {2}, false);
  EXPECT_TRUE(outcome.ok()) << outcome.hang << outcome.wrong << outcome.unnamed;
}

TEST(SimulatedWorlds, have_sets_that_exchange_uneven_parts) {
  const SimOutcome outcome = simulate_alltoall(41, {2}, false, 3);
  EXPECT_TRUE(outcome.ok()) << outcome.hang << outcome.wrong << outcome.unnamed;
}

TEST(SimulatedWorlds, have_sets_that_tell_each_other_their_splits) {
  const SimOutcome outcome = simulate_alltoall(kSanitized ? 300 : 600, {0}, false, 1);
  EXPECT_TRUE(outcome.ok()) << outcome.hang << outcome.wrong << outcome.unnamed;
}

// The rows have no bytes. The test is about their numbers, which exceed one control message.
TEST(SimulatedWorlds, of_a_thousand_ranks_tell_each_other_their_splits) {
  const SimOutcome outcome = simulate_alltoall(kSanitized ? 300 : 1024, {0}, false);
  EXPECT_TRUE(outcome.ok()) << outcome.hang << outcome.wrong << outcome.unnamed;
}

TEST(SimulatedWorlds, of_many_ranks_exchange_little_in_few_messages) {
  for (const int ranks : {17, 32, 45}) {
    const SimOutcome outcome = simulate_alltoall(ranks, {3}, true);
    EXPECT_TRUE(outcome.ok()) << ranks << ": " << outcome.hang << outcome.wrong << outcome.unnamed;
  }
}

// The same operation repeats until one rank has another number of rows. All ranks get the results
// of the submitted rows, even ranks that have begun with the rows of the plan.
TEST(SimulatedPlans, go_on_with_the_rows_that_ranks_have) {
  for (const Kind kind : {Kind::allgather, Kind::gather, Kind::scatter, Kind::alltoall}) {
    uint64_t replayed = 0;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      SimScript script;
      script.ranks = 4;
      script.plan_repeats = 2;
      script.segment_bytes = 4096;
      script.network.seed = seed;
      script.network.delay_max = 50 * kMicrosecond;
      SimOperation operation{.kind = kind, .root = 1, .name = seed % 2 == 0 ? "rows" : ""};
      operation.shapes = {{3}};
      const bool is_split = kind == Kind::alltoall || kind == Kind::scatter;
      operation.rows.assign(4,
                            is_split ? std::vector<int64_t>{5, 0, 2, 1} : std::vector<int64_t>{5});
      for (int round = 0; round < 5; ++round) {
        script.phases.insert(script.phases.end(), 8, {operation});
        operation.rows[1].back() += 2;
      }
      const SimOutcome outcome = simulate(script);
      ASSERT_TRUE(outcome.ok()) << name_of(kind) << " with seed " << seed << ": " << outcome.hang
                                << outcome.wrong << outcome.unnamed << outcome.overslept;
      EXPECT_GT(outcome.plans_left, 0u);
      replayed += outcome.replayed;
    }
    EXPECT_GT(replayed, 0u) << name_of(kind);
  }
}

// A rank starts a planned operation that needs data of all ranks. Another rank joins instead, and
// hears of the plan's end before the first rank does. The zeros that the joined rank contributes
// must not become a result.
TEST(SimulatedPlans, end_before_zeros_of_a_rank_that_has_joined_are_a_result) {
  for (const int ranks : {2, 3}) {
    uint64_t caught_up = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      SimScript script;
      script.ranks = ranks;
      script.plan_repeats = 2;
      script.segment_bytes = 4096;
      script.network.seed = seed;
      script.network.delay_max = 50 * kMicrosecond;
      script.network.eager_bytes = 2000;
      const SimOperation most{.op = ReduceOp::max, .name = "most", .shapes = {{30}}};
      script.phases.insert(script.phases.end(), 8, {most});
      SimOperation of_some = most;
      of_some.givers = 1;
      of_some.first_giver = 1 + static_cast<int>(seed) % (ranks - 1);
      script.phases.push_back({of_some});
      script.phases.push_back({{.kind = Kind::join}});
      const SimOutcome outcome = simulate(script);
      ASSERT_TRUE(outcome.ok()) << ranks << " ranks, seed " << seed << ": " << outcome.hang
                                << outcome.wrong << outcome.unnamed << outcome.overslept;
      caught_up += outcome.caught_up;
    }
    EXPECT_GT(caught_up, 0u);
  }
}

// When ranks have joined, operations that need data of all ranks end at once. Ranks are then
// several operations of a name ahead of their children in the control tree, which has three levels
// here. The children's records must not be gathered with later ones.
TEST(SimulatedPlans, end_well_where_ranks_are_ahead_of_their_children) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SimScript script;
    script.ranks = 20;
    script.plan_repeats = 2;
    script.segment_bytes = 4096;
    script.network.seed = seed;
    script.network.delay_max = kMillisecond;
    script.network.control_delays = 10;
    SimOperation most{.op = ReduceOp::max, .name = "most", .shapes = {{30}}};
    script.phases.insert(script.phases.end(), 6, {most});
    most.givers = 19;
    most.first_giver = 7;  // without rank 6
    script.phases.insert(script.phases.end(), 4, {most});
    script.phases.push_back({{.kind = Kind::join}});
    const SimOutcome outcome = simulate(script);
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.hang << outcome.wrong
                              << outcome.unnamed << outcome.overslept;
  }
}

TEST(SimulatedFaults, replay_to_the_same_story) {
  for (uint64_t seed : {3u, 17u, 42u}) {
    EXPECT_EQ(make_script(seed).text(), make_script(seed).text());
  }
}

}  // namespace
}  // namespace rdmacoll
