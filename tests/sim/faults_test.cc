// Thousands of orders of events that the real thing shows once a year.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/sim_script.h"
#include "engine/simulator.h"
#include "sanitized.h"

namespace rdmacoll {
namespace {

TEST(SimulatedFaults, end_with_right_sums_or_the_right_error) {
  uint64_t plans = 0, plans_left = 0, caught_up = 0, anew = 0, shared = 0, by_servers = 0;
  uint64_t refused = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimOutcome outcome = simulate(seed);
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.scenario << "\n"
                              << outcome.hang << outcome.wrong << outcome.unnamed;
    plans += outcome.plans;
    plans_left += outcome.plans_left;
    (make_script(seed).servers > 0 ? by_servers : shared) += outcome.shared;
    caught_up += outcome.caught_up;
    anew += outcome.anew;
    refused += outcome.refused;
  }
  // Ranks have begun plans, left them, and been at different places then.
  EXPECT_GT(plans, 100u);
  EXPECT_GT(plans_left, 50u);
  EXPECT_GT(shared, 100u);
  EXPECT_GT(by_servers, 50u);
  EXPECT_GT(caught_up, 20u);
  EXPECT_GT(anew, 5u);
  // Ranks have heard words of an earlier world.
  EXPECT_GT(refused, 30u);
}

// What an earlier world has said, of the same ranks and about the same operations, is never taken
// for this one's: the world ends and says why, or nothing comes of it.
TEST(SimulatedWorlds, do_not_believe_words_of_an_earlier_one) {
  uint64_t refused = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SimScript script;
    script.ranks = 3;
    script.plan_repeats = seed % 2 == 0 ? 2 : 0;
    script.segment_bytes = 4096;
    script.network.seed = seed;
    script.late_words = 2;
    script.phases.insert(script.phases.end(), 8, {{.name = "sum", .shapes = {{30}}}});
    const SimOutcome outcome = simulate(script);
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.hang << outcome.wrong
                              << outcome.unnamed << outcome.overslept;
    refused += outcome.refused;
  }
  EXPECT_GT(refused, 60u);
}

// The root's answer to what a rank had started by a plan, and had the verdict of already, met the
// rank's next operation of that name.
TEST(SimulatedFaults, end_well_where_verdicts_overtake_what_they_are_about) {
  const SimOutcome outcome = simulate(3809);
  EXPECT_TRUE(outcome.ok()) << outcome.scenario << "\n" << outcome.hang << outcome.unnamed;
}

TEST(SimulatedFaults, cover_every_fault_and_several_world_sizes) {
  std::set<Fault> faults;
  std::set<int> ranks;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    faults.insert(script.fault);
    ranks.insert(script.ranks);
  }
  EXPECT_EQ(faults.size(), 12u);
  EXPECT_GE(ranks.size(), 7u);
}

// An allreduce by a caller who leaves it to the engine where its results lie is among them.
TEST(SimulatedFaults, refuse_the_result_of_every_kind_that_asks_for_memory) {
  std::map<Kind, int> refused, planned;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const SimScript script = make_script(seed);
    if (script.fault != Fault::refuse) continue;
    const SimOperation& target = script.phases[script.fault_phase][script.fault_operation];
    ++refused[target.kind];
    if (script.plan_repeats > 0 && script.fault_phase > 6) ++planned[target.kind];
  }
  for (const Kind kind : {Kind::allreduce, Kind::allgather, Kind::reducescatter, Kind::alltoall,
                          Kind::gather, Kind::scatter}) {
    EXPECT_GT(refused[kind], 8) << name_of(kind);
  }
  EXPECT_EQ(refused.size(), 6u);
  EXPECT_GT(planned[Kind::allreduce], 8);
}

// Whoever has no memory for a result says so, and is named by the others.
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

TEST(SimulatedFaults, cover_parameter_servers_and_every_end_of_theirs) {
  std::set<int> servers;
  std::set<Fault> of_servers;
  int planned = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const SimScript script = make_script(seed);
    servers.insert(script.servers);
    if (script.servers > 0 && script.plan_repeats > 0) ++planned;
    if (script.victim >= script.ranks) of_servers.insert(script.fault);
  }
  EXPECT_EQ(servers, (std::set{0, 1, 2, 3}));
  EXPECT_GT(planned, 50);
  for (const Fault fault : {Fault::kill, Fault::nap, Fault::stop, Fault::cut, Fault::unplug,
                            Fault::exhaust, Fault::dry}) {
    EXPECT_TRUE(of_servers.contains(fault)) << static_cast<int>(fault);
  }
}

TEST(SimulatedFaults, cover_every_kind) {
  std::set<Kind> kinds;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    for (const auto& phase : make_script(seed).phases) {
      for (const SimOperation& operation : phase) kinds.insert(operation.kind);
    }
  }
  for (uint8_t number = 0; is_known(static_cast<Kind>(number)); ++number) {
    EXPECT_TRUE(kinds.contains(static_cast<Kind>(number))) << int{number};
  }
}

TEST(SimulatedFaults, cover_dtypes_operators_and_even_exchanges) {
  std::map<Dtype, int> reduced, moved;
  std::map<ReduceOp, int> operators;
  int refused_products = 0, even = 0, planned_even = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) {
        if (operation.shapes.empty()) continue;
        const bool reduces = row_of(operation.kind).reduces;
        const int ranks = script.ranks_of(operation.set);
        ++(reduces ? reduced : moved)[operation.dtype];
        if (reduces) ++operators[operation.op];
        refused_products += operation.op == ReduceOp::product && operation.is_refused(ranks);
        if (operation.kind != Kind::alltoall || ranks < 3) continue;
        const auto& first = operation.rows.front();
        const std::vector<int64_t> all(first.size(), first.front());
        if (first.front() == 0 ||
            operation.rows != std::vector<std::vector<int64_t>>(first.size(), all)) {
          continue;
        }
        ++even;
        planned_even += script.plan_repeats > 0;
      }
    }
  }
  for (int number = 0; number < kDtypes; ++number) {
    const auto dtype = static_cast<Dtype>(number);
    EXPECT_TRUE(!is_reducible(dtype, ReduceOp::sum) || reduced[dtype] > 20) << name_of(dtype);
  }
  EXPECT_GT(moved[Dtype::boolean], 20);
  EXPECT_GT(reduced[Dtype::boolean], 10);
  EXPECT_GT(moved[Dtype::uint16], 10);
  for (int op = 0; op < kReduceOps; ++op) {
    EXPECT_GT(operators[static_cast<ReduceOp>(op)], 50) << op;
  }
  EXPECT_GT(refused_products, 10);
  EXPECT_GT(even, 20);
  EXPECT_GT(planned_even, 20);
}

// Ranks may follow a plan there, whatever it is that repeats itself.
TEST(SimulatedFaults, cover_repetitions_of_every_kind) {
  std::map<Kind, int> repeated;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    for (std::size_t i = 0; script.plan_repeats > 0 && i + 1 < script.phases.size(); ++i) {
      if (script.phases[i].size() != script.phases[i + 1].size()) continue;
      for (const SimOperation& operation : script.phases[i]) ++repeated[operation.kind];
    }
  }
  for (uint8_t number = 0; static_cast<Kind>(number) != Kind::join; ++number) {
    EXPECT_GT(repeated[static_cast<Kind>(number)], 20) << int{number};
  }
}

TEST(SimulatedFaults, cover_sets_of_processes_that_overlap) {
  int overlapping = 0, disjoint = 0;
  std::size_t operations = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) operations += operation.set > 0 ? 1 : 0;
    }
    for (int rank = 0; rank < script.ranks; ++rank) {
      int sets = 0;
      for (std::size_t set = 1; set <= script.sets.size(); ++set) {
        sets += script.rank_in(set, rank) >= 0 ? 1 : 0;
      }
      ++(sets > 1 ? overlapping : disjoint);
    }
  }
  EXPECT_GT(overlapping, 20);
  EXPECT_GT(disjoint, 20);
  EXPECT_GT(operations, 100u);
}

// Of a set whose ranks have other numbers in the world, where others are `outside`.
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
    script.phases.push_back({{.kind = Kind::barrier}});  // nobody leaves before all are done
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

// Each rank is told what it gets, not what anybody gives to anybody.
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

// Rows of no bytes: what is tried are the numbers, 8 MB of them, beyond one control message.
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

// The same again and again, until one rank has another number of rows: all have the results of what
// was submitted, also those that had begun with the rows of the plan.
TEST(SimulatedPlans, go_on_with_the_rows_that_ranks_have) {
  for (const Kind kind : {Kind::allgather, Kind::gather, Kind::scatter, Kind::alltoall}) {
    uint64_t anew = 0;
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
      anew += outcome.anew;
    }
    EXPECT_GT(anew, 0u) << name_of(kind);
  }
}

// A rank has started by the plan what needs data of all; another one joins instead, and has heard
// before the first that the plan has ended: what it gives is zeros, and no result.
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

// Where ranks have joined, what needs data of all ends at once: so ranks are several operations of
// a name ahead of their children in the control tree, which has three levels here. What those say
// must not be gathered with later ones.
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

TEST(SimulatedFaults, cover_sets_that_come_and_go) {
  int added = 0, removed = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    for (const SimSetChange& change : make_script(seed).changes) {
      ++(change.is_removed ? removed : added);
    }
  }
  EXPECT_GT(added, 30);
  EXPECT_GT(removed, 20);
}

TEST(SimulatedFaults, cover_ranks_that_join_early) {
  int early = 0, refused = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) {
        const int ranks = script.ranks_of(operation.set);
        early += operation.givers > 0 && operation.givers < ranks ? 1 : 0;
        refused += operation.is_refused(ranks) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(early, 50);
  EXPECT_GT(refused, 10);
}

TEST(SimulatedFaults, replay_to_the_same_story) {
  for (uint64_t seed : {3u, 17u, 42u}) {
    EXPECT_EQ(make_script(seed).text(), make_script(seed).text());
  }
}

}  // namespace
}  // namespace rdmacoll
