// Broken schedules that the verifier must reject.
#include <gtest/gtest.h>

#include <utility>

#include "algorithm_names.h"
#include "collectives/builder.h"
#include "unit/schedules.h"

namespace rdmacoll {
namespace {

class Verifier : public testing::Test {
 protected:
  std::vector<Schedule> ring() const { return schedules_of(*row_of(named::ring), {.ranks = 3}); }
  std::string check(const std::vector<Schedule>& schedules) const {
    return verified(*row_of(named::ring), schedules, {.ranks = 3});
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
    const Slice view = program.await(1 - rank, program.input(0));
    program.reduce(program.output(0), {program.input(0), view}, true);
    schedules.push_back(program.finish());
  }
  EXPECT_NE(check(schedules).find("never gets past"), std::string::npos);
}

TEST_F(Verifier, finds_a_part_that_is_gathered_to_the_wrong_place) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 3; ++rank) {
    schedules.push_back(make_schedule(named::bruck_alltoall, {.ranks = 3, .rank = rank}));
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
    schedules.push_back(make_schedule(named::pairwise_alltoall, {.ranks = 3, .rank = rank}));
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
    schedules.push_back(
        make_schedule(named::binomial_reduce, {.ranks = 4, .rank = rank, .root = 2}));
  }
  EXPECT_EQ(verify(schedules, AlgorithmRow::Result::root_sum, 2, true), "");
  EXPECT_NE(verify(schedules, AlgorithmRow::Result::root_sum, 1, true), "");
  EXPECT_NE(verify(schedules, AlgorithmRow::Result::sum, 2, true), "");
}

TEST_F(Verifier, finds_a_sum_out_of_canonical_order) {
  EXPECT_NE(verify(ring(), AlgorithmRow::Result::sum, 0, true).find("canonical"),
            std::string::npos);
}

// Sums of 16-bit floats. The verifier finds values that are rounded twice or read in a wrong width.
class WideVerifier : public testing::Test {
 protected:
  std::vector<Schedule> ring() const {
    return schedules_of(*row_of(named::ring), {.ranks = 3, .wide_sums = true});
  }
  static std::string check(const std::vector<Schedule>& schedules) {
    return verify(schedules, AlgorithmRow::Result::sum, 0, false);
  }
};

TEST_F(WideVerifier, accepts_sums_that_are_rounded_once) { EXPECT_EQ(check(ring()), ""); }

TEST_F(WideVerifier, finds_a_sum_that_is_rounded_on_its_way) {
  auto schedules = ring();
  for (Schedule& schedule : schedules) {
    for (Step& step : schedule.steps) step.to.wide = false;
    for (Slice& source : schedule.sources) source.wide = false;
  }
  EXPECT_NE(check(schedules).find("rounds a sum that is not whole"), std::string::npos);
}

TEST_F(WideVerifier, finds_ends_of_a_transfer_that_disagree) {
  for (const bool sent : {true, false}) {
    auto schedules = ring();
    for (Step& step : schedules[1].steps) {
      if ((sent ? sends(step.verb) : receives(step.verb)) && step.to.wide) step.to.wide = false;
    }
    EXPECT_NE(check(schedules), "") << sent;
  }
}

TEST_F(WideVerifier, finds_a_contribution_that_is_read_as_a_sum) {
  auto schedules = ring();
  for (Slice& source : schedules[2].sources) source.wide = true;
  EXPECT_NE(check(schedules).find("takes 16 bits for 32"), std::string::npos);
}

}  // namespace
}  // namespace rdmacoll
