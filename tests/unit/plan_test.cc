// The orders that make a plan, the operations that a plan names, and the ranks that catch up after
// it.
#include "agreement/plan.h"

#include <gtest/gtest.h>

#include "agreement/catch_up.h"
#include "agreement/recurrence.h"
#include "algorithm_names.h"
#include "base/text.h"
#include "set_worlds.h"

namespace rdmacoll {
namespace {

class Plans : public testing::Test {
 protected:
  // Returns the number of a descriptor, by default of a sum. An empty name means unnamed.
  uint32_t number_of(const std::string& name, int64_t elements = 4, Kind kind = Kind::allreduce) {
    bool is_new = false;
    return table_.intern(operation(name, elements, 0, kind)->descriptor, is_new);
  }
  static OperationRef operation(const std::string& name, int64_t elements = 4,
                                int64_t iteration = 0, Kind kind = Kind::allreduce) {
    Request request;
    request.kind = kind;
    request.name = name;
    request.iteration = iteration;
    request.tensors = {{nullptr, nullptr, {elements}, ""}};
    return std::make_shared<Operation>(std::move(request));
  }
  Decision decision(std::vector<std::string> names, Kind kind = Kind::allreduce) {
    Decision decision{sequence_++, {named::direct, 4096}};
    for (const std::string& name : names) {
      decision.units.push_back({{number_of(name, 4, kind), {}}, name.empty() ? unnamed_++ : 0});
    }
    return decision;
  }
  // An operation whose ranks have `rows`.
  Decision gathering(const std::string& name, RowTable rows, Kind kind = Kind::allgather) {
    Decision decision = this->decision({name}, kind);
    if (kind == Kind::alltoall) decision.most_rows = most_rows(rows);
    decision.rows = std::move(rows);
    return decision;
  }
  PlanMessage plan(Recurrence& recurrence) {
    const auto period = recurrence.find();
    EXPECT_TRUE(period);
    return {1, sequence_, period->next_number, period->decisions};
  }

  DescriptorTable table_;
  uint64_t sequence_ = 0;
  int64_t unnamed_ = 0;
};

TEST_F(Plans, need_a_period_that_has_come_so_often) {
  Recurrence recurrence(table_, 3);
  for (int round = 0; round < 3; ++round) {
    for (const char* name : {"a", "b", "c"}) {
      EXPECT_FALSE(recurrence.find()) << round << name;
      recurrence.note(decision({name}));
    }
  }
  const auto period = recurrence.find();
  ASSERT_TRUE(period);
  ASSERT_EQ(period->decisions.size(), 3u);
  EXPECT_EQ(period->decisions[0].units[0].descriptor, number_of("a"));
}

TEST_F(Plans, begin_after_the_last_trial_of_their_period) {
  Recurrence recurrence(table_, 3);
  for (int round = 0; round < 5; ++round) {
    recurrence.note(decision({"a"}));
    Decision b = decision({"b"});
    b.is_timed = round < 4;
    recurrence.note(b);
    EXPECT_EQ(recurrence.find().has_value(), round == 4) << round;
  }
}

TEST_F(Plans, do_not_mind_another_order_or_company_within_the_period) {
  Recurrence recurrence(table_, 3);
  recurrence.note(decision({"a", "b"}));
  recurrence.note(decision({"c"}));
  recurrence.note(decision({"c"}));
  recurrence.note(decision({"b", "a"}));
  EXPECT_FALSE(recurrence.find());
  recurrence.note(decision({"b"}));
  EXPECT_FALSE(recurrence.find());
  recurrence.note(decision({"c", "a"}));
  const auto period = recurrence.find();
  ASSERT_TRUE(period);
  ASSERT_EQ(period->decisions.size(), 2u);  // as in the last round
  EXPECT_EQ(period->decisions[1].units[0].descriptor, number_of("c"));
}

TEST_F(Plans, are_of_every_kind) {
  for (uint8_t number = 0; static_cast<Kind>(number) != Kind::join; ++number) {
    Recurrence recurrence(table_, 2);
    for (int round = 0; round < 2; ++round) {
      recurrence.note(decision({cat("of kind ", number)}, static_cast<Kind>(number)));
    }
    EXPECT_TRUE(recurrence.find()) << int{number};
  }
  Recurrence never(table_, 0);
  for (int round = 0; round < 10; ++round) never.note(decision({"a"}));
  EXPECT_FALSE(never.find());
}

TEST_F(Plans, need_the_same_rows_again) {
  Recurrence recurrence(table_, 2);
  recurrence.note(gathering("g", {{1}, {2}}));
  recurrence.note(gathering("g", {{2}, {1}}));
  EXPECT_FALSE(recurrence.find());
  recurrence.note(gathering("g", {{2}, {1}}));
  const auto period = recurrence.find();
  ASSERT_TRUE(period);
  ASSERT_EQ(period->decisions.size(), 1u);
  EXPECT_EQ(period->decisions[0].rows, (RowTable{{2}, {1}}));
}

TEST_F(Plans, give_no_name_two_numbers_of_rows) {
  Recurrence named(table_, 2), unnamed(table_, 2);
  for (int round = 0; round < 5; ++round) {
    for (const int64_t rows : {1, 2}) {
      named.note(gathering("g", {{rows}, {3}}));
      unnamed.note(gathering("", {{rows}, {3}}));
    }
  }
  EXPECT_FALSE(named.find());
  EXPECT_TRUE(unnamed.find()) << "numbers tell them apart";
}

TEST_F(Plans, have_no_large_tables_of_rows) {
  Recurrence recurrence(table_, 2);
  const RowTable table(100, std::vector<int64_t>(100, 7));
  for (int round = 0; round < 10; ++round) {
    recurrence.note(gathering("x", table, Kind::alltoall));
  }
  EXPECT_FALSE(recurrence.find());
}

TEST_F(Plans, give_no_name_two_meanings) {
  Recurrence recurrence(table_, 2);
  for (int round = 0; round < 5; ++round) {
    for (const int64_t elements : {4, 8}) {
      recurrence.note({sequence_++, {named::direct, 4096}, {{{number_of("m", elements), {}}, 0}}});
    }
  }
  EXPECT_FALSE(recurrence.find());
}

TEST_F(Plans, that_did_not_pay_make_the_next_one_wait) {
  Recurrence recurrence(table_, 2);
  const auto rounds_until_a_plan = [&] {
    int rounds = 0;
    while (!recurrence.find()) {
      recurrence.note(decision({"a"}));
      ++rounds;
    }
    return rounds;
  };
  EXPECT_EQ(rounds_until_a_plan(), 2);
  recurrence.plan_ended(1, 3);
  EXPECT_EQ(rounds_until_a_plan(), 4);
  recurrence.plan_ended(1, 3);
  EXPECT_EQ(rounds_until_a_plan(), 8);
  recurrence.plan_ended(1, 300);
  EXPECT_EQ(rounds_until_a_plan(), 2);
}

TEST_F(Plans, name_decisions_and_the_numbers_of_the_unnamed) {
  Recurrence recurrence(table_, 2);
  for (int round = 0; round < 2; ++round) {
    recurrence.note(decision({"", ""}));
    recurrence.note(decision({"a"}));
    recurrence.note(decision({""}));
  }
  const SetWorld world = set_world(0, 1);
  Plan mode(world, table_);
  ASSERT_TRUE(mode.begin(plan(recurrence)));
  EXPECT_EQ(mode.phase(), Plan::Phase::plan);
  EXPECT_EQ(mode.decision(6).keys, (std::vector<UnitKey>{{"", 6}, {"", 7}}));
  EXPECT_EQ(mode.decision(7).keys, (std::vector<UnitKey>{{"a", 0}}));
  EXPECT_EQ(mode.decision(8).keys, (std::vector<UnitKey>{{"", 8}}));
  EXPECT_EQ(mode.decision(12).keys, (std::vector<UnitKey>{{"", 12}, {"", 13}}));
  EXPECT_EQ(mode.decision(6).decision.units[1].iteration, 7);

  EXPECT_TRUE(mode.fits(*operation("a")));
  EXPECT_FALSE(mode.fits(*operation("a", 5)));
  EXPECT_FALSE(mode.fits(*operation("b")));
  EXPECT_FALSE(mode.fits(*operation("a", 4, 1)));
  EXPECT_TRUE(mode.fits(*operation("", 4, 20)));
  EXPECT_FALSE(mode.fits(*operation("", 5, 20)));
  EXPECT_FALSE(mode.fits(*operation("", 4, 5)));  // before the plan
}

TEST_F(Plans, of_another_era_or_with_unknown_numbers_are_refused) {
  Recurrence recurrence(table_, 2);
  for (int round = 0; round < 2; ++round) recurrence.note(decision({"a"}));
  PlanMessage message = plan(recurrence);
  const SetWorld world = set_world(0, 1);
  Plan mode(world, table_);
  message.era = 2;
  EXPECT_FALSE(mode.begin(message));
  message.era = 1;
  message.decisions[0].units[0].descriptor = 99;
  EXPECT_FALSE(mode.begin(message));
}

TEST_F(Plans, know_what_each_rank_is_to_say_of_its_rows) {
  Recurrence recurrence(table_, 2);
  for (int round = 0; round < 2; ++round) {
    recurrence.note(gathering("g", {{3}, {5}}));
    recurrence.note(gathering("x", {{1, 2}, {4}}, Kind::alltoall));  // rank 1 gives 4 to each
  }
  const SetWorld world = set_world(1, 2);
  Plan mode(world, table_);
  ASSERT_TRUE(mode.begin(plan(recurrence)));
  EXPECT_EQ(mode.decision(4).own_rows, std::vector<int64_t>{5});
  EXPECT_EQ(*mode.decision(4).rows, (RowTable{{3}, {5}}));
  EXPECT_EQ(*mode.decision(5).rows, (RowTable{{2}, {4}})) << "what this rank gets";
  EXPECT_EQ(mode.rows_of(7), (RowTable{{1, 2}, {4}})) << "what all have said";
  EXPECT_EQ(mode.decision(4).rows, mode.decision(6).rows) << "the same ones in each period";

  EXPECT_TRUE(mode.fits(*operation("g", 5, 0, Kind::allgather)));
  EXPECT_FALSE(mode.fits(*operation("g", 3, 0, Kind::allgather)));
  EXPECT_TRUE(mode.fits(*operation("x", 8, 0, Kind::alltoall)));
  OperationRef uneven = operation("x", 8, 0, Kind::alltoall);
  uneven->request.splits = {3, 5};
  EXPECT_FALSE(mode.fits(*uneven));
  EXPECT_FALSE(mode.is_about(mode.decision(4), *operation("g", 3, 0, Kind::allgather)));
  EXPECT_TRUE(mode.is_about(mode.decision(4), *operation("g", 5, 0, Kind::allgather)));
}

TEST_F(Plans, with_rows_that_do_not_fit_are_refused) {
  const SetWorld world = set_world(0, 2);
  for (const RowTable& rows :
       {RowTable{{1}}, RowTable{{1}, {1, 2}}, RowTable{}, RowTable{{1}, {2}, {3}}}) {
    PlanMessage message{1, 0, 0, {{{named::ring_allgather, 64}, {}, rows}}};
    message.decisions[0].units = {{number_of("g", 4, Kind::allgather), false, 0}};
    Plan mode(world, table_);
    EXPECT_FALSE(mode.begin(message)) << rows.size();
  }
}

TEST_F(Plans, end_once_this_rank_and_all_children_have_reported) {
  Recurrence recurrence(table_, 2);
  for (int round = 0; round < 2; ++round) recurrence.note(decision({"a"}));
  const SetWorld world = set_world(0, 3);
  Plan mode(world, table_);
  ASSERT_TRUE(mode.begin(plan(recurrence)));
  mode.freeze();
  EXPECT_FALSE(mode.report(7, 7, 5));
  EXPECT_FALSE(mode.report(6, 9, 8));
  EXPECT_TRUE(mode.report(8, 8, 0));
  EXPECT_EQ(mode.least(), 6u);
  EXPECT_EQ(mode.furthest(), 9u);
  mode.resume(2);
  EXPECT_EQ(mode.phase(), Plan::Phase::log);
  EXPECT_EQ(mode.era(), 2u);
}

TEST_F(Plans, leave_decisions_that_wait_for_all_their_units) {
  CatchUp catch_up;
  catch_up.expect({{5, {named::direct, 1}}, {{"a", 0}, {"b", 0}}}, true);
  catch_up.expect({{6, {named::direct, 1}}, {{"c", 0}}}, false);
  EXPECT_EQ(catch_up.sequence_of({"b", 0}), 5u);
  EXPECT_EQ(*catch_up.unit_of(6), (UnitKey{"c", 0}));
  EXPECT_EQ(catch_up.unit_of(7), nullptr);
  EXPECT_TRUE(catch_up.names({"a", 0}));
  EXPECT_FALSE(catch_up.unit_caught_up({"a", 0}));
  EXPECT_FALSE(catch_up.names({"a", 0}));  // the next operation of this name is another one
  EXPECT_EQ(catch_up.unit_caught_up({"c", 0}), 6u);
  catch_up.caught_up(6);
  EXPECT_TRUE(catch_up.waits(5));
  EXPECT_EQ(catch_up.unit_caught_up({"b", 0}), 5u);
  catch_up.caught_up(5);
  EXPECT_TRUE(catch_up.empty());
}

}  // namespace
}  // namespace rdmacoll
