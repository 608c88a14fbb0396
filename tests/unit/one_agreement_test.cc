// The messages of the agreement one by one: what one rank does when it hears them.
#include "one_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "algorithm_names.h"

namespace rdmacoll {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Readiness of the whole subtree of `origin`, with a descriptor in full.
// `times`: of trials there.
ReadyMessage readiness(int origin, const OperationRef& operation,
                       std::vector<TrialTime> times = {}) {
  ReadyMessage message;
  message.times = std::move(times);
  message.records.push_back({{0, operation->descriptor}, 0, SetRank(origin), true, {}});
  return message;
}

TEST(OneAgreement, of_a_leaf_sends_its_readiness_to_its_parent) {
  OneAgreement leaf(2, 3);
  const OperationRef x = OneAgreement::sum("x");
  leaf.submit(x);
  leaf.turn();
  const auto sent = leaf.sent<ReadyMessage>(0);
  ASSERT_THAT(sent, SizeIs(1));
  ASSERT_THAT(sent[0].records, SizeIs(1));
  EXPECT_EQ(sent[0].records[0].origin, SetRank(2));
  EXPECT_EQ(sent[0].records[0].descriptor.bytes, x->descriptor);
  EXPECT_THAT(leaf.begun(), IsEmpty());
}

TEST(OneAgreement, of_the_root_decides_once_all_ranks_are_ready) {
  OneAgreement root(0, 3);
  const OperationRef x = OneAgreement::sum("x");
  root.submit(x);
  EXPECT_EQ(root.hear(2, readiness(2, x)), "");
  root.turn();
  EXPECT_THAT(root.begun(), IsEmpty());
  EXPECT_EQ(root.hear(1, readiness(1, x)), "");
  root.turn();
  ASSERT_THAT(root.begun(), SizeIs(1));
  EXPECT_EQ(root.begun()[0].operations, std::vector{x});
  for (int child : {1, 2}) {
    EXPECT_THAT(root.sent<InternMessage>(child), SizeIs(1));
    EXPECT_THAT(root.sent<Decision>(child), SizeIs(1));
  }
}

TEST(OneAgreement, begins_a_decision_that_names_its_operation) {
  OneAgreement leaf(2, 3);
  const OperationRef x = OneAgreement::sum("x");
  leaf.submit(x);
  leaf.turn();
  const Decision decision{0, {named::ring, 4096}, {{{1, ""}, 0}}, {}, 0};
  EXPECT_NE(leaf.hear(0, decision), "") << "number 1 has no descriptor yet";
  EXPECT_EQ(leaf.hear(0, InternMessage{1, x->descriptor}), "");
  EXPECT_NE(leaf.hear(1, decision), "") << "rank 1 is not its parent";
  EXPECT_EQ(leaf.hear(0, decision), "");
  leaf.turn();
  ASSERT_THAT(leaf.begun(), SizeIs(1));
  EXPECT_EQ(leaf.begun()[0].operations, std::vector{x});
  EXPECT_TRUE(leaf.blamed().is_none());
}

TEST(OneAgreement, blames_its_parent_for_a_decision_about_nothing_that_it_has_submitted) {
  OneAgreement leaf(2, 3);
  EXPECT_EQ(leaf.hear(0, InternMessage{1, OneAgreement::sum("x")->descriptor}), "");
  EXPECT_EQ(leaf.hear(0, Decision{0, {named::ring, 4096}, {{{1, ""}, 0}}, {}, 0}), "");
  EXPECT_EQ(leaf.blamed(), kTreeRoot);
}

TEST(OneAgreement, ends_an_operation_by_a_verdict_and_passes_it_on) {
  OneAgreement inner(1, 18);  // its child: rank 17
  const OperationRef x = OneAgreement::sum("x"), y = OneAgreement::sum("y");
  inner.submit(x);
  inner.submit(y);
  const VerdictMessage verdict{"x", 0, {SetRank(1), SetRank(17)}, {Code::mismatch, "they differ"}};
  EXPECT_EQ(inner.hear(0, verdict), "");
  ASSERT_NE(inner.end_of(x), nullptr);
  EXPECT_THAT(inner.end_of(x)->message(), HasSubstr("they differ"));
  EXPECT_EQ(inner.end_of(y), nullptr);
  EXPECT_THAT(inner.sent<VerdictMessage>(17), SizeIs(1));
}

TEST(OneAgreement, of_the_root_names_the_rank_that_is_missing) {
  Agreement::Rules rules;
  rules.limits = {.stall_warning = kSecond, .stall_error = 3 * kSecond};
  OneAgreement root(0, 3, rules);
  const OperationRef x = OneAgreement::sum("x");
  root.submit(x);
  EXPECT_EQ(root.hear(1, readiness(1, x)), "");
  root.turn(4 * kSecond);
  root.turn();
  ASSERT_NE(root.end_of(x), nullptr);
  EXPECT_EQ(root.end_of(x)->code(), Code::stalled);
  EXPECT_EQ(root.end_of(x)->detail().ranks, std::vector<JobRank>{JobRank(2)});
  EXPECT_THAT(root.sent<VerdictMessage>(1), SizeIs(1));
}

// The sums of a turn run in the turn itself, after its beginning.
TEST(OneAgreement, of_the_root_times_trials_to_the_end_of_what_their_turn_computes) {
  const auto chosen = [](Nanoseconds usual, Nanoseconds rival) -> std::string {
    OneAgreement root(0, 2, {.log = {.tries_ways = true}});
    root.see({.one_node = true});
    std::vector<Algorithm> taken;
    std::vector<TrialTime> times;
    for (uint64_t i = 0; i < 12 * static_cast<uint64_t>(Tuning().trial_row); ++i) {
      const OperationRef x = OneAgreement::sum("x", (256 << 10) / sizeof(float));
      root.submit(x);
      EXPECT_EQ(root.hear(1, readiness(1, x, times)), "");
      root.turn();
      times = {{i, 1, 1}};
      taken.push_back(root.begun().back().movement.algorithm);
      root.compute(taken.back() == taken.front() ? usual : rival);
      root.agreement().ended(*x, true);
    }
    return taken.back() == taken.front() ? "usual" : "rival";
  };
  EXPECT_EQ(chosen(30 * kMicrosecond, 10 * kMicrosecond), "rival");
  EXPECT_EQ(chosen(10 * kMicrosecond, 30 * kMicrosecond), "usual");
}

// A rank adds its own time to those of the ranks below it. The slowest one counts.
TEST(OneAgreement, of_each_rank_tells_the_times_of_trials_with_readiness) {
  OneAgreement rank(1, 40);
  const int child = tree_children(SetRank(1), 40).front().value();
  const auto children = tree_children(SetRank(1), 40);
  const OperationRef x = OneAgreement::sum("x"), y = OneAgreement::sum("y");
  const auto ready = [&](const OperationRef& operation, std::vector<TrialTime> times) {
    rank.submit(operation);
    for (const SetRank below : children) {
      const bool is_first = below.value() == child;
      EXPECT_EQ(rank.hear(below.value(), readiness(below.value(), operation,
                                                   is_first ? times : std::vector<TrialTime>())),
                "");
    }
    rank.turn();
  };
  ready(x, {});
  Decision decision{0, {named::direct, 4096}, {{{0, x->descriptor}, 0}}};
  decision.is_timed = true;
  EXPECT_EQ(rank.hear(0, decision), "");
  rank.turn();
  rank.compute(30);
  x->state.sequence = 0;
  rank.agreement().ended(*x, true);
  ready(y, {{0, 2 * kMillisecond, 1}});
  const std::vector<ReadyMessage> sent = rank.sent<ReadyMessage>(0);
  ASSERT_FALSE(sent.empty());
  std::vector<TrialTime> told;
  for (const ReadyMessage& message : sent) {
    told.insert(told.end(), message.times.begin(), message.times.end());
  }
  ASSERT_FALSE(told.empty());
  uint32_t ranks = 0;
  Nanoseconds slowest = 0;
  for (const TrialTime& time : told) {
    EXPECT_EQ(time.sequence, 0);
    ranks += time.ranks;
    slowest = std::max(slowest, time.time);
  }
  EXPECT_EQ(ranks, 2);
  EXPECT_EQ(slowest, 2 * kMillisecond);
}

TEST(OneAgreement, of_the_root_leaves_a_plan_whose_sums_take_another_time_and_tries_again) {
  Agreement::Rules rules{.log = {.tries_ways = true, .looks_again = true}, .plan_repeats = 2};
  rules.log.tuning.trial_row = 2;
  rules.log.tuning.drift_window = 2;
  rules.log.tuning.drift_sums = 4;
  OneAgreement root(0, 2, rules);
  root.see({.one_node = true});
  // Runs a sum, which ends after this time if it goes the usual way, and after 20 us otherwise.
  // Returns the decision, or null: the root takes no decision.
  std::vector<TrialTime> times;
  const auto run = [&](uint32_t era, Nanoseconds usual) -> const CompleteDecision* {
    const std::size_t before = root.begun().size();
    const OperationRef x = OneAgreement::sum("x", (256 << 10) / sizeof(float));
    root.submit(x);
    ReadyMessage message = readiness(1, x, times);
    message.era = era;
    EXPECT_EQ(root.hear(1, message), "");
    root.turn();
    if (root.begun().size() == before) return nullptr;
    const CompleteDecision& decision = root.begun().back();
    times.clear();
    if (!decision.is_planned) times = {{decision.sequence, 1, 1}};
    const bool is_usual = decision.movement.algorithm == root.begun().front().movement.algorithm;
    root.compute(is_usual ? usual : 20 * kMicrosecond);
    root.agreement().ended(*x, true);
    return &decision;
  };
  const CompleteDecision* last = nullptr;
  for (int i = 0; i < 40; ++i) last = run(0, 10 * kMicrosecond);
  EXPECT_TRUE(last->is_planned);
  EXPECT_EQ(last->movement.algorithm, root.begun().front().movement.algorithm);
  EXPECT_THAT(root.sent<FreezeMessage>(1), IsEmpty());
  while (last != nullptr && root.begun().size() < 60) last = run(0, 30 * kMicrosecond);
  EXPECT_THAT(root.sent<FreezeMessage>(1), SizeIs(1));
  const uint64_t taken = root.begun().size();
  EXPECT_EQ(root.hear(1, FrozenMessage{1, taken, taken}), "");
  for (int i = 0; i < 40; ++i) last = run(2, 30 * kMicrosecond);
  ASSERT_NE(last, nullptr);
  EXPECT_TRUE(last->is_planned);
  EXPECT_NE(last->movement.algorithm, root.begun().front().movement.algorithm);
}

// The root of 2 ranks follows plans, and its callers wait in another order than those of rank 1.
class PlansAtTheRoot : public testing::Test {
 protected:
  // Both ranks submit these operations until a plan begins.
  void begin_a_plan(const std::vector<std::string>& names) {
    while (root_.sent<PlanMessage>(1).empty()) {
      for (const std::string& name : names) submit(name);
      submit_at_other(0, names);
      ASSERT_LT(root_.begun().size(), 9u);
    }
  }
  OperationRef submit(const std::string& name) {
    const OperationRef operation = OneAgreement::sum(name);
    root_.submit(operation);
    return operation;
  }
  void submit_at_other(uint32_t era, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      ReadyMessage message = readiness(1, OneAgreement::sum(name));
      message.era = era;
      EXPECT_EQ(root_.hear(1, message), "");
    }
    root_.turn();
  }
  // Rank 1 has taken one decision more than the root, and has lost its inputs.
  void leave_the_plan() {
    const uint64_t taken = root_.begun().size();
    root_.turn(kSecond);
    ASSERT_THAT(root_.sent<FreezeMessage>(1), SizeIs(1));
    EXPECT_EQ(root_.hear(1, FrozenMessage{1, taken + 1, taken + 1, taken + 1}), "");
  }
  void expect_cure_for(const std::string& name) {
    root_.turn(4 * kSecond);
    root_.turn();
    ASSERT_THAT(root_.sent<VerdictMessage>(1), SizeIs(1));
    const VerdictMessage verdict = root_.sent<VerdictMessage>(1).front();
    EXPECT_EQ(verdict.name, name);
    EXPECT_THAT(verdict.status.message(), HasSubstr("RDMACOLL_PLAN_REPEATS=0"));
  }

  OneAgreement root_{
      0, 2, {.limits = {.stall_warning = kSecond, .stall_error = 3 * kSecond}, .plan_repeats = 2}};
};

TEST_F(PlansAtTheRoot, say_what_to_do_about_sums_of_one_batch_in_another_order) {
  begin_a_plan({"x", "y"});
  ASSERT_THAT(root_.begun().back().operations, SizeIs(2));
  const OperationRef x = submit("x");
  leave_the_plan();
  submit_at_other(2, {"x", "y"});
  expect_cure_for("y");
  EXPECT_EQ(root_.begun().back().operations.front(), x) << "x runs with zeros for y";
}

// Rank 1 cannot run y before the root lends it memory for x.
TEST_F(PlansAtTheRoot, say_what_to_do_about_sums_that_wait_for_others_to_lend_memory) {
  begin_a_plan({"x"});
  const OperationRef y = submit("y");
  leave_the_plan();
  submit_at_other(2, {"x", "y"});
  ASSERT_EQ(root_.begun().back().operations, std::vector{y});
  expect_cure_for("x");
}

// Rank 1 of 2 in a plan of one batch: the sums x and y.
class PlansOfABatch : public testing::Test {
 protected:
  PlansOfABatch() {
    EXPECT_EQ(rank_.hear(0, InternMessage{1, x_->descriptor}), "");
    EXPECT_EQ(rank_.hear(0, InternMessage{2, y_->descriptor}), "");
    EXPECT_EQ(
        rank_.hear(0, PlanMessage{1, 0, -1, {{{named::direct, 4096}, {{1, false}, {2, false}}}}}),
        "");
  }
  void leave_the_plan(uint64_t kept) {
    EXPECT_EQ(rank_.hear(0, FreezeMessage{1}), "");
    EXPECT_EQ(rank_.hear(0, ResumeMessage{2, 0, 1, kept}), "");
    rank_.turn();
  }
  // The names of what this rank has announced since the plan.
  std::vector<std::string> announced() const {
    std::vector<std::string> names;
    for (const ReadyMessage& message : rank_.sent<ReadyMessage>(0)) {
      for (const ReadyRecord& record : message.records) {
        names.push_back(record.joins ? "join" : record.descriptor.id == 1 ? "x" : "y");
      }
    }
    return names;
  }
  // The operation has moved its data. Returns whether it has ended with that.
  bool has_run(OperationRef operation) {
    Status status;
    return rank_.agreement().settle(operation, status);
  }

  OneAgreement rank_{1, 2};
  const OperationRef x_ = OneAgreement::sum("x"), y_ = OneAgreement::sum("y");
};

TEST_F(PlansOfABatch, takes_zeros_of_a_rank_whose_caller_waits_for_one_sum_before_the_other) {
  rank_.submit(x_);
  rank_.turn();
  EXPECT_THAT(rank_.begun(), IsEmpty());
  leave_the_plan(0);
  ASSERT_THAT(rank_.begun(), SizeIs(1));
  for (const OperationRef& operation : rank_.begun()[0].operations) {
    EXPECT_TRUE(operation->is_placeholder);
    EXPECT_TRUE(has_run(operation));
  }
  EXPECT_THAT(announced(), ElementsAre("x"));
  EXPECT_EQ(rank_.hear(0, Decision{1, {named::direct, 4096}, {{{1, ""}, 0}}}), "");
  rank_.turn();
  ASSERT_THAT(rank_.begun(), SizeIs(2));
  EXPECT_EQ(rank_.begun()[1].operations, std::vector{x_});
  EXPECT_TRUE(has_run(x_));
}

TEST_F(PlansOfABatch, waits_for_both_sums_where_a_rank_has_lost_its_inputs) {
  rank_.submit(x_);
  leave_the_plan(1);
  EXPECT_THAT(rank_.begun(), IsEmpty());
  rank_.submit(y_);
  rank_.turn();
  ASSERT_THAT(rank_.begun(), SizeIs(1));
  EXPECT_FALSE(has_run(x_)) << "other ranks may not have submitted it";
}

TEST_F(PlansOfABatch, is_decided_again_on_a_rank_that_has_started_it) {
  rank_.submit(x_);
  rank_.submit(y_);
  rank_.turn();
  ASSERT_THAT(rank_.begun(), SizeIs(1));
  EXPECT_EQ(rank_.hear(0, FreezeMessage{1}), "");
  EXPECT_FALSE(has_run(x_)) << "another rank may have given zeros";
  const auto join = std::make_shared<Operation>(Request{{.kind = Kind::join}, 0, kJoinIteration});
  rank_.submit(join);
  EXPECT_EQ(rank_.hear(0, ResumeMessage{2, 0, 1, 0}), "");
  rank_.turn();
  EXPECT_THAT(announced(), ElementsAre("x")) << "the join comes after all operations";
  EXPECT_FALSE(has_run(y_));
  rank_.turn();
  EXPECT_THAT(announced(), ElementsAre("x", "y", "join"));
  EXPECT_EQ(rank_.end_of(x_), nullptr);
}

TEST_F(PlansOfABatch, takes_no_zeros_of_a_rank_that_leaves) {
  rank_.situation().leaving = true;
  leave_the_plan(0);
  EXPECT_THAT(rank_.begun(), IsEmpty());
  EXPECT_TRUE(rank_.blamed().is_none());
}

TEST_F(PlansOfABatch, is_kept_while_sums_do_not_write_over_their_inputs) {
  rank_.submit(x_);
  rank_.submit(y_);
  rank_.turn();
  rank_.lose_inputs(1);
  EXPECT_EQ(rank_.hear(0, FreezeMessage{1}), "");
  ASSERT_THAT(rank_.sent<FrozenMessage>(0), SizeIs(1));
  EXPECT_EQ(rank_.sent<FrozenMessage>(0)[0].furthest, 1u);
  EXPECT_EQ(rank_.sent<FrozenMessage>(0)[0].kept, 1u);
}

}  // namespace
}  // namespace rdmacoll
