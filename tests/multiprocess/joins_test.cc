// Ranks whose data ends before the others', over real transports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "multiprocess/local_world.h"

namespace rdmacoll {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kRanks = 3;

int64_t last_joined(const Operation& joined) {
  int64_t last = -1;
  std::memcpy(&last, joined.results[0].memory.get(), sizeof last);
  return last;
}

// The last rank that joined, or -1 with a failed expectation.
int64_t join(Session& session, uint32_t set = 0) {
  Request request;
  request.kind = Kind::join;
  request.set = set;
  const auto operation = std::make_shared<Operation>(std::move(request));
  const Status accepted = session.driver().submit_and_wait(operation, 60 * kSecond);
  EXPECT_TRUE(accepted.ok()) << accepted.message();
  if (!accepted.ok() || !operation->done() || !operation->status().ok()) {
    ADD_FAILURE() << (operation->done() ? operation->status().message() : session.state());
    return -1;
  }
  return last_joined(*operation);
}

Status join_status(Session& session) {
  Request request;
  request.kind = Kind::join;
  return run(session, std::move(request));
}

// Rank r has `steps_of(r)` steps; each is a small sum, a group and a large average.
void train(Session& session, int rank, const std::vector<int>& steps) {
  for (int step = 0; step < steps[rank]; ++step) {
    const auto givers = std::count_if(steps.begin(), steps.end(), [&](int n) { return n > step; });
    int sum = 0;
    for (int r = 0; r < kRanks; ++r) sum += steps[r] > step ? r + 1 : 0;
    std::vector<float> small(5, static_cast<float>(rank + 1));
    Request request = in_place(Kind::allreduce, Dtype::float32, small, "small");
    ASSERT_TRUE(run(session, std::move(request)).ok());
    ASSERT_THAT(small, Each(static_cast<float>(sum))) << "step " << step << " of rank " << rank;

    std::vector<int32_t> first(70, rank + 1), second(1, 1);
    request = in_place(Kind::allreduce, Dtype::int32, first);
    request.tensors.push_back(in_place(Kind::allreduce, Dtype::int32, second).tensors[0]);
    ASSERT_TRUE(run(session, std::move(request)).ok());
    ASSERT_THAT(first, Each(sum)) << "step " << step << " of rank " << rank;
    ASSERT_EQ(second[0], givers);

    std::vector<double> large(200'000, 6.0 * (rank + 1));
    request = in_place(Kind::allreduce, Dtype::float64, large, "large");
    request.op = ReduceOp::average;
    ASSERT_TRUE(run(session, std::move(request)).ok());
    ASSERT_EQ(large.front(), 6.0 * sum / kRanks) << "an average is divided by all ranks";
    ASSERT_EQ(large.back(), 6.0 * sum / kRanks);
  }
}

class Joins : public testing::TestWithParam<const char*> {
 protected:
  std::string settings(const std::string& more = "") const {
    return std::string("RDMACOLL_LOG=error\nRDMACOLL_TRANSPORT=") + GetParam() + "\n" + more;
  }
};

TEST_P(Joins, have_sums_go_on_in_the_log_and_out_of_plans) {
  for (const char* repeats : {"0", "2"}) {
    LocalWorld world(kRanks, settings(cat("RDMACOLL_PLAN_REPEATS=", repeats, "\n")));
    if (HasFatalFailure()) return;
    for (const std::vector<int>& steps :
         {std::vector{12, 30, 20}, {1, 0, 12}, {15, 15, 4}, {0, 0, 0}, {9, 9, 9}}) {
      std::vector<int64_t> last(kRanks);
      world.each([&](int rank) {
        train(world.rank(rank), rank, steps);
        last[rank] = join(world.rank(rank));
      });
      if (HasFailure()) return;
      EXPECT_THAT(last, Each(last[0]));
      // Rank 0's steps take their time, so the rank with far more steps joins last.
      if (steps[1] == 30) {
        EXPECT_EQ(last[0], 1);
      }
    }
    // All go on as before: unnamed operations have the same numbers everywhere.
    world.each([&](int rank) { train(world.rank(rank), rank, {3, 3, 3}); });
  }
}

TEST_P(Joins, refuse_what_needs_data_of_every_rank) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    Session& session = world.rank(rank);
    if (rank == 1) {
      EXPECT_NE(join(session), 1);
      return;
    }
    for (const Kind kind : {Kind::broadcast, Kind::allgather, Kind::reducescatter, Kind::reduce}) {
      std::vector<int32_t> values(6, rank);
      Request request = in_place(kind, Dtype::int32, values, "needs all");
      const Status status = run(session, std::move(request));
      EXPECT_EQ(status.code(), Code::invalid) << status.message();
      EXPECT_THAT(status.message(), HasSubstr(cat(name_of(kind), " of int32")));
      EXPECT_THAT(status.message(), HasSubstr("needs data of rank 1"));
      EXPECT_EQ(status.detail().ranks, std::vector<JobRank>{JobRank(1)});
    }
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      std::vector<int32_t> values(6, rank);
      Request request = in_place(Kind::allreduce, Dtype::int32, values);
      request.op = op;
      EXPECT_EQ(run(session, std::move(request)).code(), Code::invalid);
    }
    Request barrier;
    barrier.kind = Kind::barrier;
    EXPECT_TRUE(run(session, std::move(barrier)).ok());
    EXPECT_NE(join(session), 1);
  });
  world.each([&](int rank) { train(world.rank(rank), rank, {2, 2, 2}); });
}

TEST_P(Joins, let_nobody_submit_before_they_have_returned) {
  LocalWorld world(2, settings());
  if (HasFatalFailure()) return;
  Request request;
  request.kind = Kind::join;
  const auto joining = std::make_shared<Operation>(std::move(request));
  ASSERT_TRUE(world.rank(0).driver().submit(joining).ok());
  std::vector<float> values(3);
  const Status status = run(world.rank(0), in_place(Kind::allreduce, Dtype::float32, values, "x"));
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), HasSubstr("this rank has joined and cannot submit allreduce 'x'"));
  EXPECT_THAT(join_status(world.rank(0)).message(), HasSubstr("cannot submit"));
  const int64_t last = join(world.rank(1));  // either: whose engine got to work first
  EXPECT_THAT(last, AnyOf(0, 1));
  ASSERT_TRUE(world.rank(0).driver().wait(*joining, 60 * kSecond));
  ASSERT_TRUE(joining->status().ok());
  EXPECT_EQ(last_joined(*joining), last);
}

TEST_P(Joins, do_not_wait_for_ever_for_a_rank_that_does_nothing) {
  LocalWorld world(kRanks, settings("RDMACOLL_STALL_WARNING_S=0.2\nRDMACOLL_STALL_ERROR_S=0.4\n"));
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    if (rank == 2) return;
    const Status status = join_status(world.rank(rank));
    EXPECT_EQ(status.code(), Code::stalled) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("join was called by 2 of 3 ranks"));
    EXPECT_EQ(status.detail().ranks, std::vector<JobRank>{JobRank(2)});
  });
}

TEST_P(Joins, end_when_a_rank_leaves_without_one) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    if (rank == 2) return world.rank(rank).close("ValueError: no more data");
    const Status status = join_status(world.rank(rank));
    EXPECT_EQ(status.code(), Code::rank_failed) << status.message();
    EXPECT_EQ(status.detail().rank, JobRank(2));
    EXPECT_THAT(status.message(), HasSubstr("no more data"));
  });
}

TEST_P(Joins, are_a_sets_own_affair) {
  LocalWorld world(kRanks, settings());
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    uint32_t number = 0;
    ASSERT_TRUE(world.rank(rank).add_set({JobRank(0), JobRank(2)}, number).ok());
  });
  world.each([&](int rank) {
    Session& session = world.rank(rank);
    if (rank == 2) {
      EXPECT_THAT(join(session, 1), AnyOf(0, 2));
    }
    for (int step = 0; rank == 0 && step < 20; ++step) {
      std::vector<float> values(9, 4);
      Request request = in_place(Kind::allreduce, Dtype::float32, values);
      request.set = 1;
      request.op = ReduceOp::average;
      ASSERT_TRUE(run(session, std::move(request)).ok());
      ASSERT_THAT(values, Each(2.0f));
    }
    if (rank == 0) {
      EXPECT_THAT(join(session, 1), AnyOf(0, 2));
    }
    train(session, rank, {4, 4, 4});
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Joins, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace rdmacoll
