// Process sets over real transports: every kind in sets that overlap, at the same time, while sets
// come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "every_kind.h"
#include "multiprocess/local_world.h"
#include "sim/values.h"

namespace rdmacoll {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 4;

class ProcessSets : public testing::TestWithParam<const char*> {
 protected:
  std::string settings() const {
    return std::string("RDMACOLL_LOG=error\nRDMACOLL_PLAN_REPEATS=2\nRDMACOLL_TRANSPORT=") +
           GetParam() + "\n";
  }
};

// Its number, the same on all ranks.
uint32_t add(LocalWorld& world, const std::vector<int>& ranks) {
  std::vector<uint32_t> numbers(world.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    EXPECT_TRUE(world.rank(rank).add_set({ranks.begin(), ranks.end()}, numbers[rank]).ok());
    EXPECT_EQ(numbers[rank], numbers[0]);
  }
  return numbers[0];
}

void remove(LocalWorld& world, uint32_t number) {
  world.each([&](int rank) {
    const Status status = world.rank(rank).remove_set(number, 60 * kSecond);
    EXPECT_TRUE(status.ok()) << status.message();
  });
}

struct Set {
  uint32_t number;
  std::vector<int> ranks;

  int place_of(int rank) const {
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    return at == ranks.end() ? -1 : static_cast<int>(at - ranks.begin());
  }
};

// Every kind in all the sets that the rank is in, submitted in an order of its own before it waits
// for any.
void every_kind_in_all(Session& session, int rank, const std::vector<Set>& sets, int64_t rows) {
  struct Task {
    SimOperation script;
    int place = 0, ranks = 0;
    SimMemory memory;
    OperationRef operation;
  };
  std::vector<Task> tasks;
  for (const Set& set : sets) {
    if (set.place_of(rank) < 0) continue;
    const int ranks = static_cast<int>(set.ranks.size());
    for (SimOperation& operation : every_kind(ranks, rows, false)) {
      operation.set = set.number;
      tasks.push_back({operation, set.place_of(rank), ranks, {}, nullptr});
    }
  }
  std::mt19937 random(static_cast<unsigned>(rank) + 7);
  std::shuffle(tasks.begin(), tasks.end(), random);
  for (Task& task : tasks) {
    task.operation =
        std::make_shared<Operation>(sim_request(task.script, task.place, false, task.memory));
    const Status status = session.driver().submit(task.operation);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  for (Task& task : tasks) {
    ASSERT_TRUE(session.driver().wait(*task.operation, 60 * kSecond)) << session.state();
    ASSERT_TRUE(task.operation->status().ok()) << task.operation->status().message();
    ASSERT_EQ(sim_error(task.script, task.ranks, task.place, *task.operation), "")
        << name_of(task.script.kind) << " of set " << task.script.set << " on rank " << rank;
  }
}

TEST_P(ProcessSets, have_every_kind_at_the_same_time_while_they_come_and_go) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  std::vector<Set> sets{{0, {0, 1, 2, 3}}};
  for (const std::vector<int>& ranks :
       {std::vector{0, 1}, {1, 2, 3}, {3}, {0, 2}, {0, 1, 2}, {2, 3}}) {
    sets.push_back({add(world, ranks), ranks});
    for (const int64_t rows : {3, 3, 3, 700}) {
      world.each([&](int rank) { every_kind_in_all(world.rank(rank), rank, sets, rows); });
    }
    if (HasFailure()) return;
    if (sets.size() < 4) continue;
    remove(world, sets[1].number);
    sets.erase(sets.begin() + 1);
  }
}

TEST_P(ProcessSets, are_refused_to_strangers_and_when_they_are_no_more) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  const uint32_t number = add(world, {1, 3});
  std::vector<float> values(3);
  Request request = in_place(Kind::allreduce, Dtype::float32, values, "x");
  request.set = number;
  EXPECT_THAT(run(world.rank(0), request).message(),
              HasSubstr("this rank is not in process set 1 (ranks 1, 3)"));
  remove(world, number);
  EXPECT_THAT(run(world.rank(1), request).message(), HasSubstr("there is no process set 1"));
  EXPECT_THAT(world.rank(1).remove_set(number, 0).message(), HasSubstr("no process set 1"));
  const uint32_t next = add(world, {1, 3});
  EXPECT_GT(next, number) << "the last words about a set that was removed find no other";
  world.each([&](int rank) { every_kind_in_all(world.rank(rank), rank, {{next, {1, 3}}}, 5); });
}

INSTANTIATE_TEST_SUITE_P(Over, ProcessSets, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace rdmacoll
