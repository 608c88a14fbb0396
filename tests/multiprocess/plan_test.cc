// Plan mode over real transports: no control messages, and every way out of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "multiprocess/local_world.h"

namespace rdmacoll {
namespace {

constexpr int kRanks = 3;
const std::vector<std::string> kNames = {"a", "b", "c"};

double metric(Session& session, const std::string& name) {
  const std::string text = session.metrics();
  const std::size_t at = text.find("\"" + name + "\": ");
  EXPECT_NE(at, std::string::npos) << name;
  return std::stod(text.substr(at + name.size() + 4));
}

// Sums of `names` at once, submitted in an order of the rank's own.
std::vector<Status> step(Session& session, int rank, int round, std::vector<std::string> names,
                         std::size_t length = 300) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + round));
  std::shuffle(names.begin(), names.end(), random);
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, OperationRef> operations;
  std::vector<Status> statuses;
  for (const std::string& name : names) {
    values[name].assign(length, static_cast<float>(rank + round + name.front()));
    auto operation =
        std::make_shared<Operation>(in_place(Kind::allreduce, Dtype::float32, values[name], name));
    const Status status = session.driver().submit(operation);
    if (status.ok()) {
      operations[name] = std::move(operation);
    } else {
      statuses.push_back(status);  // the world has ended meanwhile
    }
  }
  for (auto& [name, operation] : operations) {
    EXPECT_TRUE(session.driver().wait(*operation, 20 * kSecond)) << session.state();
    statuses.push_back(operation->status());
    if (!statuses.back().ok()) continue;
    const int sum = kRanks * (round + name.front()) + kRanks * (kRanks - 1) / 2;
    EXPECT_EQ(values[name].front(), static_cast<float>(sum)) << name << " of rank " << rank;
    EXPECT_EQ(values[name].back(), static_cast<float>(sum));
  }
  return statuses;
}

void expect_good_steps(Session& session, int rank, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (const Status& status : step(session, rank, round, kNames)) {
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

// Runs steps until all ranks follow a plan: the composition of batches depends on timing at first.
void follow_a_plan(LocalWorld& world) {
  for (int tries = 0; tries < 50 && metric(world.rank(0), "plans") == 0; ++tries) {
    world.each([&](int rank) { expect_good_steps(world.rank(rank), rank, 10); });
  }
  world.each([&](int rank) {
    expect_good_steps(world.rank(rank), rank, 3);
    ASSERT_EQ(metric(world.rank(rank), "plans"), 1);
    ASSERT_EQ(metric(world.rank(rank), "plans_left"), 0);
  });
}

class PlanMode : public testing::TestWithParam<const char*> {
 protected:
  std::string settings(const std::string& more = "") const {
    return std::string("RDMACOLL_LOG=error\nRDMACOLL_TRANSPORT=") + GetParam() + "\n" + more;
  }
};

TEST_P(PlanMode, needs_no_control_messages_and_comes_back_after_a_surprise) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  follow_a_plan(world);
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    Session& session = world.rank(rank);
    const double before = metric(session, "control_messages");
    expect_good_steps(session, rank, 20);
    EXPECT_EQ(metric(session, "control_messages"), before);
  });
  for (int surprise = 0; surprise < 10; ++surprise) {
    world.each([&](int rank) {
      std::vector<std::string> names = kNames;
      names.push_back("validation");
      for (const Status& status : step(world.rank(rank), rank, surprise, names)) {
        EXPECT_TRUE(status.ok()) << status.message();
      }
      expect_good_steps(world.rank(rank), rank, 20);
    });
  }
  EXPECT_GE(metric(world.rank(0), "plans_left"), 1);
}

TEST_P(PlanMode, ends_when_only_a_part_of_it_is_submitted) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  follow_a_plan(world);
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    for (int round = 0; round < 5; ++round) {
      EXPECT_TRUE(step(world.rank(rank), rank, round, {"c"}).front().ok());
    }
  });
  EXPECT_EQ(metric(world.rank(1), "plans_left"), 1);
}

TEST_P(PlanMode, another_shape_is_a_mismatch_on_all_ranks_and_the_world_goes_on) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  follow_a_plan(world);
  if (HasFatalFailure()) return;
  for (int odd = 0; odd < kRanks; ++odd) {
    world.each([&](int rank) {
      const std::size_t length = rank == odd ? 301 : 300;
      for (const Status& status : step(world.rank(rank), rank, 0, kNames, length)) {
        EXPECT_EQ(status.code(), Code::mismatch) << status.message();
        EXPECT_NE(status.message().find("(301,)"), std::string::npos) << status.message();
      }
      expect_good_steps(world.rank(rank), rank, 30);
    });
  }
}

TEST_P(PlanMode, a_rank_that_stays_away_is_named) {
  LocalWorld world(kRanks, settings("RDMACOLL_STALL_WARNING_S=0.1\nRDMACOLL_STALL_ERROR_S=1.5\n"));
  if (HasFatalFailure()) return;
  follow_a_plan(world);
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    if (rank == 1) return;
    for (const Status& status : step(world.rank(rank), rank, 0, kNames)) {
      EXPECT_EQ(status.code(), Code::stalled) << status.message();
      EXPECT_EQ(status.detail().ranks, std::vector<JobRank>{JobRank(1)});
    }
  });
}

TEST_P(PlanMode, a_stall_is_found_though_plans_come_and_go_meanwhile) {
  LocalWorld world(
      2, settings(
             "RDMACOLL_STALL_WARNING_S=0.2\nRDMACOLL_STALL_ERROR_S=1\nRDMACOLL_PLAN_REPEATS=2\n"));
  if (HasFatalFailure()) return;
  std::vector<float> alone(4, 1.f);
  const auto stalled =
      std::make_shared<Operation>(in_place(Kind::allreduce, Dtype::float32, alone, "alone"));
  ASSERT_TRUE(world.rank(0).driver().submit(stalled).ok());
  world.each([&](int rank) {
    std::vector<float> values(4, 1.f);
    for (int round = 0; round < 20'000; ++round) {
      // Both stop after the same round: rank 0 says so in what it adds.
      values[0] = rank == 0 && stalled->done() ? 1.f : 0.f;
      ASSERT_TRUE(
          run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values, "a")).ok());
      if (values[0] > 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  ASSERT_TRUE(stalled->done());
  EXPECT_EQ(stalled->status().code(), Code::stalled) << stalled->status().message();
  EXPECT_EQ(stalled->status().detail().ranks, std::vector<JobRank>{JobRank(1)});
}

TEST_P(PlanMode, a_rank_that_leaves_is_named_by_those_who_have_started) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  follow_a_plan(world);
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    if (rank == 2) return world.rank(rank).close("ValueError: enough");
    for (const Status& status : step(world.rank(rank), rank, 0, kNames)) {
      EXPECT_EQ(status.code(), Code::rank_failed) << status.message();
      EXPECT_EQ(status.detail().rank, JobRank(2)) << status.message();
      EXPECT_NE(status.message().find("ValueError"), std::string::npos) << status.message();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, PlanMode, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace rdmacoll
