// Errors between ranks that are threads of one process.
#include <dirent.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "multiprocess/local_world.h"

namespace rdmacoll {
namespace {

TEST(Mismatch, names_each_ranks_value_and_the_world_goes_on) {
  LocalWorld world(3, "RDMACOLL_LOG=error\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<float> values(rank == 2 ? 5 : 4, 1.f);
    const Status status =
        run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values, "layer/kernel"));
    EXPECT_EQ(status.code(), Code::mismatch);
    for (const char* part : {"layer/kernel", "ranks 0, 1", "(4,)", "rank 2", "(5,)"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
    std::vector<float> again(4, 1.f);
    EXPECT_TRUE(run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, again)).ok());
    EXPECT_EQ(again[0], 3.f);
  });
}

TEST(Mismatch, of_an_unnamed_allreduce_with_a_broadcast_is_found) {
  LocalWorld world(2, "RDMACOLL_LOG=error\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<float> values(4, 1.f);
    const Kind kind = rank == 0 ? Kind::allreduce : Kind::broadcast;
    EXPECT_EQ(run(world.rank(rank), in_place(kind, Dtype::float32, values)).code(), Code::mismatch);
  });
}

TEST(Names, may_be_in_flight_once_only) {
  LocalWorld world(1, "");
  if (HasFatalFailure()) return;
  std::vector<float> values(4, 1.f);
  Request request = in_place(Kind::allreduce, Dtype::float32, values, "twice");
  LocalWorld pair(2, "");
  const auto first = std::make_shared<Operation>(request);
  ASSERT_TRUE(pair.rank(0).driver().submit(first).ok());
  const auto second = std::make_shared<Operation>(request);
  const Status status = pair.rank(0).driver().submit(second);
  EXPECT_EQ(status.code(), Code::duplicate);
  EXPECT_NE(status.message().find("twice"), std::string::npos);
  std::vector<float> others(4, 1.f);
  EXPECT_TRUE(run(pair.rank(1), in_place(Kind::allreduce, Dtype::float32, others, "twice")).ok());
  EXPECT_TRUE(pair.rank(0).driver().wait(*first, 10 * kSecond));
}

Status wait_for_the_others(Session& session) {
  std::vector<float> values(4, 1.f);
  return run(session, in_place(Kind::allreduce, Dtype::float32, values, "late"));
}

TEST(Stalls, warn_then_fail_with_the_missing_rank) {
  LocalWorld world(
      3, "RDMACOLL_LOG=error\nRDMACOLL_STALL_WARNING_S=0.1\nRDMACOLL_STALL_ERROR_S=0.5\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    if (rank == 1) return;
    const Status status = wait_for_the_others(world.rank(rank));
    EXPECT_EQ(status.code(), Code::stalled) << status.message();
    EXPECT_EQ(status.detail().ranks, std::vector<int>{1});
    EXPECT_EQ(status.detail().tensor, "late");
  });
}

TEST(Stalls, fail_at_their_limit_though_the_warning_were_later) {
  LocalWorld world(2, "RDMACOLL_LOG=error\nRDMACOLL_STALL_ERROR_S=0.5\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    if (rank == 1) return;
    const Status status = wait_for_the_others(world.rank(rank));
    EXPECT_EQ(status.code(), Code::stalled);
    EXPECT_EQ(status.message().find("for 10"), std::string::npos) << status.message();
  });
}

TEST(Departure, ends_what_others_still_submit_and_names_the_exception) {
  LocalWorld world(3, "RDMACOLL_LOG=error\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    if (rank == 1) {
      world.rank(rank).close("ValueError: no more data");
      return;
    }
    std::vector<float> values(4, 1.f);
    const Status status = run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values));
    EXPECT_EQ(status.code(), Code::rank_failed) << status.message();
    EXPECT_EQ(status.detail().rank, 1);
    EXPECT_NE(status.message().find("ValueError: no more data"), std::string::npos);
  });
}

TEST(Shutdown, is_refused_and_named_afterwards) {
  LocalWorld world(2, "");
  if (HasFatalFailure()) return;
  world.close();
  std::vector<float> values(4, 1.f);
  EXPECT_EQ(run(world.rank(0), in_place(Kind::allreduce, Dtype::float32, values)).code(),
            Code::shutdown);
}

TEST(Requests, that_make_no_sense_are_refused_with_the_cure) {
  LocalWorld world(1, "");
  if (HasFatalFailure()) return;
  std::vector<int32_t> values(4, 1);
  Request average = in_place(Kind::allreduce, Dtype::int32, values);
  average.op = ReduceOp::average;
  const Status status = run(world.rank(0), average);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("op=Sum"), std::string::npos);
  Request broadcast = in_place(Kind::broadcast, Dtype::int32, values);
  broadcast.root = 3;
  EXPECT_EQ(run(world.rank(0), broadcast).code(), Code::invalid);
}

int count_entries(const char* folder) {
  int entries = 0;
  DIR* handle = opendir(folder);
  while (readdir(handle) != nullptr) ++entries;
  closedir(handle);
  return entries;
}

int count_maps() {
  std::ifstream maps("/proc/self/maps");
  int lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

TEST(StartsAndStops, leave_descriptors_threads_and_maps_as_they_were) {
  const auto once = [] {
    LocalWorld world(2, "");
    world.each([&](int rank) {
      std::vector<float> values(1000, 1.f);
      ASSERT_TRUE(run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values)).ok());
    });
  };
  for (int i = 0; i < 5; ++i) once();
  const int descriptors = count_entries("/proc/self/fd"),
            threads = count_entries("/proc/self/task");
  const int maps = count_maps();
  for (int i = 0; i < 40; ++i) once();
  EXPECT_EQ(count_entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(count_entries("/proc/self/task"), threads);
  // A map per start that stays would be 80 more; the allocator moves some of its own.
  EXPECT_LE(count_maps(), maps + 30);
}

}  // namespace
}  // namespace rdmacoll
