// The decisions of the root: their batches, their segments, and their order.
#include "agreement/decision_log.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "agreement/catch_up.h"
#include "agreement/gate.h"
#include "agreement/plan.h"
#include "agreement/readiness.h"
#include "algorithm_names.h"
#include "base/text.h"
#include "operation/operation.h"
#include "set_worlds.h"

namespace rdmacoll {
namespace {

class Decisions : public testing::Test {
 protected:
  static ReadyUnit unit(const std::string& name, int64_t elements, bool shares_results = false,
                        Kind kind = Kind::allreduce) {
    Request request;
    request.kind = kind;
    request.name = name;
    request.shares_results = shares_results;
    request.tensors = {{nullptr, nullptr, {elements}, ""}};
    return {{name, 0}, encode_descriptor(request), {}};
  }
  const SetWorld world_ = set_world(0, 4);
  DescriptorTable table_;
};

TEST_F(Decisions, small_ones_that_wait_together_share_a_batch) {
  DecisionLog log(world_, table_, {});
  for (const char* name : {"a", "b", "c"}) log.offer(unit(name, 10));
  log.offer(unit("large", 1 << 20));
  const auto first = log.form({.one_node = true});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->decision.units.size(), 3u);
  EXPECT_EQ(first->interns.size(), 3u);
  const auto second = log.form({.one_node = true});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->decision.units.size(), 1u);
  EXPECT_EQ(second->decision.sequence, 1u);
  EXPECT_FALSE(log.form({.one_node = true}));
}

// Only sums whose order of additions is the same both ways, and which only one node's memory moves.
TEST_F(Decisions, large_sums_within_a_node_try_both_ways) {
  using Rules = DecisionLog::Rules;
  const Visibility kAll{.one_node = true, .callers = true};
  const auto tries = [&](const Rules& rules, const Visibility& visibility, int64_t elements,
                         bool on_gpu = false, Kind kind = Kind::allreduce) {
    DescriptorTable table;
    DecisionLog log(world_, table, rules);
    int in_place = 0;
    for (int i = 0; i < 2 * Tuning().trial_row; ++i) {
      log.offer(unit("g", elements, false, kind), on_gpu);
      const auto formed = log.form(visibility);
      EXPECT_EQ(formed->decision.sequence, static_cast<uint64_t>(i));
      in_place += formed->decision.movement.in_place ? 1 : 0;
      EXPECT_FALSE(formed->decision.movement.in_place && !formed->decision.is_timed);
    }
    return in_place;
  };
  const int64_t large = Tuning().trial_bytes_in_place / sizeof(float);
  EXPECT_EQ(tries({.tries_ways = true}, kAll, large), Tuning().trial_row);
  EXPECT_EQ(tries({.tries_ways = true}, kAll, large - 1), 0);
  EXPECT_EQ(tries({}, kAll, large), 0);
  EXPECT_EQ(tries({.tries_ways = true, .tries_places = false}, kAll, large), 0);
  EXPECT_EQ(tries({.tries_ways = true}, {.one_node = true}, large), 0);
  EXPECT_EQ(tries({.tries_ways = true}, {.callers = true}, large), 0);
  EXPECT_EQ(tries({.tries_ways = true}, kAll, large, true), 0);
  EXPECT_EQ(tries({.tries_ways = true, .forced = {{named::ring}}}, kAll, large), 0);
  EXPECT_EQ(tries({.tries_ways = true, .servers = 1}, kAll, large), 0);
  for (const Kind kind : {Kind::reduce, Kind::reducescatter, Kind::broadcast}) {
    EXPECT_EQ(tries({.tries_ways = true}, kAll, large, false, kind), Tuning().trial_row);
    EXPECT_EQ(tries({.tries_ways = true}, kAll, large - 4, false, kind), 0);
  }
}

// A sum of this size tries several algorithms, and both are staged.
TEST_F(Decisions, small_data_that_is_only_moved_tries_nothing) {
  const int64_t elements = Tuning().trial_bytes_in_place / sizeof(float) / 2;
  for (const Kind kind : {Kind::allreduce, Kind::broadcast}) {
    DecisionLog log(world_, table_, {.tries_ways = true});
    log.offer(unit("x", elements, false, kind));
    const auto formed = log.form({.one_node = true, .callers = true});
    ASSERT_TRUE(formed);
    EXPECT_EQ(formed->decision.is_timed, kind == Kind::allreduce);
  }
}

// Beside others a trial would take their time, too.
TEST_F(Decisions, trials_run_alone) {
  const auto large = static_cast<int64_t>(Tuning().trial_bytes / sizeof(float));
  const Visibility visibility{.one_node = true};
  DecisionLog log(world_, table_, {.tries_ways = true});
  log.offer(unit("large", large));
  EXPECT_FALSE(log.form(visibility, false));
  const auto trial = log.form(visibility, true);
  ASSERT_TRUE(trial);
  EXPECT_TRUE(trial->decision.is_timed);
  log.began(trial->decision.sequence, 0);
  log.offer(unit("small", 1));
  EXPECT_FALSE(log.form(visibility, false));
  log.has_run(trial->decision.sequence, 100);
  const auto small = log.form(visibility, false);
  ASSERT_TRUE(small);
  EXPECT_FALSE(small->decision.is_timed);
}

// With equal costs of rounds and bytes, all algorithms within a node are rivals. The cheapest ones
// have their trials, and each sum has the same order of additions.
TEST_F(Decisions, sums_within_a_node_try_the_algorithms_that_cost_about_as_much) {
  const auto tried = [&](DecisionLog::Rules rules, const Visibility& visibility, int64_t elements,
                         bool shares_results = false, Kind kind = Kind::allreduce) {
    DescriptorTable table;
    DecisionLog log(world_, table, std::move(rules));
    std::set<Algorithm> algorithms;
    Nanoseconds now = 0;
    for (int i = 0; i < 100; ++i) {
      log.offer(unit("g", elements, shares_results, kind));
      const auto formed = log.form(visibility);
      EXPECT_TRUE(!shares_results || row_of(formed->decision.movement.algorithm)->has_one_writer);
      if (formed->decision.is_timed) {
        log.began(formed->decision.sequence, now);
        log.has_run(formed->decision.sequence, ++now);
        log.hear({{formed->decision.sequence, 1, 3}});
      }
      algorithms.insert(formed->decision.movement.algorithm);
      EXPECT_TRUE(is_canonical(formed->decision.movement.algorithm, {.ranks = world_.size()}));
    }
    return algorithms.size();
  };
  const int64_t count = Tuning().trial_bytes / sizeof(float);
  EXPECT_GT(tried({.tries_ways = true}, {.one_node = true}, count), 1);
  EXPECT_GT(tried({.tries_ways = true, .tries_places = false}, {.one_node = true}, count), 1);
  EXPECT_EQ(tried({.tries_ways = true}, {.one_node = true}, count - 1), 1);
  EXPECT_EQ(tried({}, {.one_node = true}, count), 1);
  EXPECT_EQ(tried({.tries_ways = true}, {}, count), 1);
  EXPECT_EQ(tried({.tries_ways = true, .forced = {{named::direct}}}, {.one_node = true}, count), 1);
  // Collectives with a root have rivals as well.
  EXPECT_GT(tried({.tries_ways = true}, {.one_node = true}, count, false, Kind::reduce), 1);
  const int64_t moved = Tuning().trial_bytes_in_place / sizeof(float);
  EXPECT_GT(tried({.tries_ways = true}, {.one_node = true}, moved, false, Kind::broadcast), 1);
  // A result with one writer is shared, so no rival may end that.
  const int64_t shared = (256 << 10) / sizeof(float);
  EXPECT_GT(tried({.tries_ways = true}, {.one_node = true}, shared), 1);
  tried({.tries_ways = true}, {.one_node = true}, shared, true);
}

// Sums of the same bytes in turns: the ways of one are remembered, and are not those of another.
TEST_F(Decisions, remembered_ways_are_those_of_the_same_facts) {
  DecisionLog log(world_, table_, {.tries_ways = true});
  const int64_t elements = Tuning().trial_bytes_in_place / sizeof(float);
  int in_place = 0, with_several_writers = 0;
  Nanoseconds now = 0;
  const auto form = [&](const std::string& name, bool shares_results, const Visibility& visibility,
                        Kind kind = Kind::allreduce) {
    log.offer(unit(name, elements, shares_results, kind));
    const auto formed = log.form(visibility);
    const uint64_t sequence = formed->decision.sequence;
    if (formed->decision.is_timed) {
      log.began(sequence, now);
      log.has_run(sequence, ++now);
      log.hear({{sequence, 1, 3}});
    }
    return formed->decision.movement;
  };
  const auto has_one_writer = [](const Movement& movement) {
    return row_of(movement.algorithm)->has_one_writer;
  };
  for (int i = 0; i < 200; ++i) {
    const Movement free = form("a", false, {.one_node = true, .callers = true});
    in_place += free.in_place ? 1 : 0;
    with_several_writers += has_one_writer(free) ? 0 : 1;
    EXPECT_TRUE(has_one_writer(form("b", true, {.one_node = true, .callers = true})));
    EXPECT_FALSE(form("c", false, {.one_node = true}).in_place);
    EXPECT_EQ(row_of(form("d", false, {.one_node = true}, Kind::reduce).algorithm)->result,
              row_of(Kind::reduce).result);
  }
  EXPECT_GT(in_place, 0);
  EXPECT_GT(with_several_writers, 0);
}

// The bits of a sum must not depend on the operations that are ready at the same time.
TEST_F(Decisions, a_batch_is_summed_in_the_order_of_each_of_its_operations) {
  const auto units_of_first = [&](const SetWorld& world, std::vector<Forced> forced,
                                  const Tuning& tuning = {}) {
    DecisionLog::Rules rules{.tuning = tuning};
    rules.forced = std::move(forced);
    DescriptorTable table;
    DecisionLog log(world, table, rules);
    for (const char* name : {"a", "b", "c"}) log.offer(unit(name, 2500));  // 10,000 bytes each
    return log.form({})->decision.units.size();
  };
  const SetWorld three = set_world(0, 3), many = set_world(0, 16);
  EXPECT_EQ(units_of_first(many, {}), 3u);
  // A ring is the cheapest for each of them, and for the batch.
  Tuning slow{.links = kSocketLinks, .batched_bytes = 9'999};
  slow.links.network.bytes_per_us = 1;
  EXPECT_EQ(units_of_first(three, {}, slow), 1u);
  slow.batched_bytes = 16 << 10;
  EXPECT_EQ(units_of_first(three, {}, slow), 3u);
  EXPECT_EQ(units_of_first(many, {{named::ring}}), 1u);
  EXPECT_EQ(units_of_first(many, {{named::direct, 20'000}, {named::ring}}), 2u);
  EXPECT_EQ(units_of_first(many, {{named::direct, 9'999}, {named::ring}}), 1u);
  const auto six_on_nodes_of = [](int ranks) {
    World world{"job", 1, 0, {}};
    for (int rank = 0; rank < 6; ++rank) world.members.push_back({"host", rank, rank / ranks});
    return SetWorld(std::move(world));
  };
  // no power of two, so the batch keeps its own order
  EXPECT_EQ(units_of_first(six_on_nodes_of(3), {}), 1u);
  EXPECT_EQ(units_of_first(six_on_nodes_of(4), {}), 3u);
}

TEST_F(Decisions, known_descriptors_are_numbers) {
  DecisionLog log(world_, table_, {});
  log.offer(unit("a", 10));
  EXPECT_EQ(log.form({.one_node = true})->interns.size(), 1u);
  log.offer(unit("a", 10));
  const auto again = log.form({.one_node = true});
  EXPECT_TRUE(again->interns.empty());
  EXPECT_EQ(again->decision.units[0].descriptor.id, 1u);
}

TEST_F(Decisions, a_pool_that_cuts_segments_short_is_noticed) {
  for (const uint64_t room : {uint64_t{192}, uint64_t{12} << 20}) {
    DecisionLog::Rules rules;
    rules.segment_room = room;
    DecisionLog log(world_, table_, rules);
    log.offer(unit("large", 1 << 20));
    const auto formed = log.form({});
    EXPECT_LE(formed->decision.movement.segment_bytes, room / 3);
    EXPECT_EQ(formed->is_cut_short, room == 192);
    log.offer(unit("small", 4));
    EXPECT_FALSE(log.form({})->is_cut_short);
  }
}

// A rank that has to stage such a segment has room for one of them.
TEST_F(Decisions, data_that_ranks_share_on_gpus_is_cut_in_longer_segments) {
  const SetWorld pair = set_world(0, 2);
  DecisionLog::Rules rules;
  rules.segment_room = uint64_t{6} << 20;
  DecisionLog log(pair, table_, rules);
  log.offer(unit("gradients", 1 << 22), true);
  const auto shared = log.form({.one_node = true, .gpus = true});
  EXPECT_EQ(shared->decision.movement.segment_bytes, rules.segment_room / 3 * kSegmentsInFlight);
  EXPECT_EQ(shared->decision.movement.algorithm, named::one_shot);
  log.offer(unit("on_the_host", 1 << 22));
  log.offer(unit("on_a_gpu_that_is_staged", 1 << 22), true);
  for (const bool shares_gpus : {true, false}) {
    const auto other = log.form({.one_node = true, .gpus = shares_gpus});
    EXPECT_LE(other->decision.movement.segment_bytes, rules.segment_room / 3);
    EXPECT_EQ(other->decision.movement.algorithm, shares_gpus ? named::write_back : named::direct);
  }
}

// The other ranks accept no more segments than the gate allows. Small segments may be a setting.
TEST_F(Decisions, long_operations_have_no_more_segments_than_other_ranks_accept) {
  struct Case {
    Kind kind;
    int64_t rows;  // on each rank, 4 KiB each
    RowTable said;
  };
  constexpr int64_t kGiB = 1 << 18;
  const Case cases[] = {
      {Kind::allreduce, 3 * kGiB, {}},
      {Kind::broadcast, 64 * kGiB, {}},
      {Kind::reducescatter, 16 * kGiB, {}},
      {Kind::allgather, 0, {{3 * kGiB}, {1}, {0}, {9 * kGiB}}},
      {Kind::alltoall, 0, {{3 * kGiB}, {0, 0, 9 * kGiB, 0}, {1}, {0}}},
  };
  for (const Case& one : cases) {
    Request request;
    request.kind = one.kind;
    request.name = "long";
    request.tensors = {{nullptr, nullptr, {one.rows, 1024}, ""}};
    DescriptorTable numbers, others;
    DecisionLog::Rules rules;
    rules.segment_bytes = 64;
    DecisionLog log(world_, numbers, rules);
    ASSERT_TRUE(log.offer({{"long", 0}, encode_descriptor(request), one.said}).is_none());
    auto formed = log.form({});
    ASSERT_TRUE(formed);
    EXPECT_GE(formed->decision.movement.segment_bytes, 64u);

    const SetWorld leaf = set_world(3, 4);
    const Readiness readiness(leaf, others, {});
    const DecisionLog accepted(leaf, others, {});
    const Plan plan(leaf, others);
    const CatchUp catch_up;
    Gate gate({leaf, 0, others, readiness, accepted, plan, catch_up});
    for (const InternMessage& intern : formed->interns) {
      EXPECT_EQ(gate.complaint(kTreeRoot, intern), "");
      ASSERT_TRUE(others.add(intern.id, intern.bytes));
    }
    Decision& decision = formed->decision;
    if (one.kind == Kind::alltoall) {  // as the leaf receives it
      const RowTable all = decision.rows;
      ASSERT_TRUE(columns_of(all, leaf.ranks(), {leaf.rank()}, decision.rows));
    }
    EXPECT_EQ(gate.complaint(kTreeRoot, decision), "") << name_of(one.kind);
    decision.movement.segment_bytes = 64;
    EXPECT_NE(gate.complaint(kTreeRoot, decision), "") << name_of(one.kind);
  }
}

TEST_F(Decisions, numbers_of_rows_that_do_not_fit_name_the_rank) {
  Request request;
  request.kind = Kind::alltoall;
  request.tensors = {{nullptr, nullptr, {6, 2}, ""}};
  DecisionLog log(world_, table_, {});
  const std::vector<int64_t> four{1, 2, 0, 3};
  ReadyUnit unit{{"a", 0}, encode_descriptor(request), {four, four, {1, 2}, four}};
  EXPECT_EQ(log.offer(unit), SetRank(2));
  unit.rows.clear();
  EXPECT_EQ(log.offer(unit), SetRank(0));
  EXPECT_FALSE(log.waiting());
  unit.rows.assign(4, four);
  EXPECT_EQ(log.offer(unit), SetRank());
  EXPECT_EQ(log.form({.one_node = true})->decision.rows, unit.rows);
}

TEST_F(Decisions, a_gap_in_the_sequence_is_refused) {
  DecisionLog log(world_, table_, {});
  EXPECT_TRUE(log.accept(Decision{0}));
  EXPECT_FALSE(log.accept(Decision{2}));
}

TEST_F(Decisions, canonical_order_never_chooses_another) {
  for (const bool wide : {false, true}) {
    for (uint64_t bytes = 1; bytes < (1u << 28); bytes *= 3) {
      for (const bool one_node : {false, true}) {
        const Facts facts{
            .ranks = 5, .one_node = one_node, .bytes = bytes, .wide_sums = wide, .canonical = true};
        const Choice choice = choose(AlgorithmRow::Result::sum, {}, facts);
        EXPECT_NE(choice.algorithm, named::ring);
        EXPECT_TRUE(adds_in_canonical_order(choice, facts));
        EXPECT_EQ(choose(AlgorithmRow::Result::own_sum, {}, facts).algorithm,
                  named::direct_reduce_scatter);
        const Choice reduce = choose(AlgorithmRow::Result::root_sum, {}, facts);
        EXPECT_TRUE(adds_in_canonical_order(reduce, facts));
      }
    }
  }
}

}  // namespace
}  // namespace rdmacoll
