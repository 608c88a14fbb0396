// After a roll call every rank has heard of every other, whatever steps came before.
#include "collectives/roll_call.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "algorithm_names.h"
#include "collectives/algorithms.h"
#include "collectives/lower.h"
#include "execution/program.h"

namespace rdmacoll {
namespace {

// Runs the steps of all ranks from `begins` on. Returns, for each rank, the ranks that it has heard
// of.
std::vector<std::set<int>> heard_by_all(const std::vector<Schedule>& all,
                                        const std::vector<std::size_t>& begins) {
  std::vector<std::set<int>> heard(all.size());
  std::vector<std::set<std::size_t>> done(all.size());
  // Key: sender, receiver and ordinal. Value: the ranks that the sender had heard of.
  std::map<std::tuple<int, int, int>, std::set<int>> sent;
  for (std::size_t rank = 0; rank < all.size(); ++rank) heard[rank] = {static_cast<int>(rank)};
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      for (std::size_t i = begins[rank]; i < all[rank].steps.size(); ++i) {
        const Step& step = all[rank].steps[i];
        bool is_ready = !done[rank].contains(i);
        for (uint16_t after : all[rank].afters_of(step)) {
          is_ready = is_ready && done[rank].contains(after);
        }
        if (!is_ready) continue;
        const int me = static_cast<int>(rank);
        if (sends(step.verb)) {
          sent[{me, step.peer, step.ordinal}] = heard[rank];
        } else if (receives(step.verb)) {
          const auto came = sent.find({step.peer, me, step.ordinal});
          if (came == sent.end()) continue;
          heard[rank].insert(came->second.begin(), came->second.end());
        }
        done[rank].insert(i);
        moves = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_EQ(done[rank].size(), all[rank].steps.size() - begins[rank]) << rank;
  }
  return heard;
}

TEST(RollCalls, let_every_rank_hear_of_every_other) {
  for (const Algorithm algorithm :
       {Algorithm::none, named::binomial_broadcast, named::direct_gather}) {
    for (int ranks = 1; ranks <= 33; ++ranks) {
      std::vector<Schedule> all;
      std::vector<std::size_t> begins;
      for (int rank = 0; rank < ranks; ++rank) {
        all.push_back(make_schedule(algorithm, {.ranks = ranks, .rank = rank, .root = ranks / 2}));
        begins.push_back(all.back().steps.size());
        call_roll(all.back(), {.ranks = ranks});
      }
      for (const std::set<int>& heard : heard_by_all(all, begins)) {
        ASSERT_EQ(heard.size(), static_cast<std::size_t>(ranks)) << name_of(algorithm);
      }
    }
  }
}

// Few ranks of a node hear from each rank directly. Each pair has one message each way, and data is
// such a message.
TEST(RollCalls, of_few_ranks_of_a_node_have_one_round) {
  for (const Algorithm algorithm :
       {Algorithm::none, named::binomial_broadcast, named::flat_broadcast, named::direct_gather,
        named::direct_scatter, named::flat_reduce, named::binomial_reduce}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (const bool are_viewed : {false, true}) {
        const std::vector<int> nodes = even_nodes(ranks, 1);
        std::vector<Schedule> all;
        std::map<std::pair<int, int>, int> messages;
        for (int rank = 0; rank < ranks; ++rank) {
          const Shape shape{.ranks = ranks, .rank = rank, .root = ranks / 2, .nodes = nodes};
          all.push_back(
              lower(make_schedule(algorithm, shape), {.views = std::vector<bool>(ranks, are_viewed),
                                                      .input = CallerMemory::hidden,
                                                      .output = CallerMemory::hidden}));
          call_roll(all.back(), shape);
          for (const Step& step : all.back().steps) {
            if (sends(step.verb)) ++messages[{rank, step.peer}];
          }
        }
        EXPECT_EQ(messages.size(), static_cast<std::size_t>(ranks * (ranks - 1)));
        for (const auto& [pair, count] : messages) EXPECT_EQ(count, 1);
        const std::vector<std::size_t> begins(all.size(), 0);
        for (const std::set<int>& heard : heard_by_all(all, begins)) {
          ASSERT_EQ(heard.size(), static_cast<std::size_t>(ranks)) << name_of(algorithm);
        }
      }
    }
  }
}

// Data counts as a message of the roll call. It may go to the pool, and not to the caller's memory.
TEST(RollCalls, end_an_operation_after_every_other_rank_was_heard) {
  constexpr int kRanks = 7;
  std::vector<JobRank> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(rank);
  const SetMembers members(ranks);
  const std::vector<int> nodes = even_nodes(kRanks, 1);
  for (const Algorithm algorithm :
       {named::direct_reduce, named::flat_reduce, named::binomial_reduce, named::flat_broadcast,
        named::direct_gather}) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Programs programs(members);
      const Shape shape{.ranks = kRanks, .rank = rank, .root = 3, .nodes = nodes};
      const Placement from_pool{.views = std::vector<bool>(kRanks, false),
                                .nics = std::vector<bool>(kRanks, true)};
      const Program& program = programs.prepared(algorithm, shape, from_pool, true);
      std::set<int> heard{rank};
      for (std::size_t i = 0; i < program.turns.size(); ++i) {
        const Step& step = program.schedule.steps[i];
        if (receives(step.verb) && program.turns[i].touches_caller) heard.insert(step.peer);
      }
      EXPECT_EQ(heard.size(), kRanks) << name_of(algorithm) << " on rank " << rank;
    }
  }
}

// A rank announces that it has begun without waiting for the data.
TEST(RollCalls, wait_for_nothing_else) {
  Schedule schedule = make_schedule(named::binomial_broadcast, {.ranks = 9, .rank = 4});
  const std::size_t begin = schedule.steps.size();
  call_roll(schedule, {.ranks = 9});
  for (std::size_t i = begin; i < schedule.steps.size(); ++i) {
    EXPECT_EQ(schedule.steps[i].to.parts, 0);
    for (uint16_t after : schedule.afters_of(schedule.steps[i])) EXPECT_GE(after, begin);
  }
}

}  // namespace
}  // namespace rdmacoll
