// Errors between ranks that are threads of one process.
#include <dirent.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "multiprocess/local_world.h"
#include "sanitized.h"

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

struct Disagreement {
  Kind kind;
  const char* name;
  void (*change)(Request& request);
  std::vector<const char*> said;
};

TEST(Mismatch, of_what_must_be_equal_is_found_for_every_kind) {
  const std::vector<Disagreement> cases{
      {Kind::reducescatter,
       "rows",
       [](Request& request) {
         request.tensors[0].dims = {2, 2};
       },
       {"reducescatter of float32 (4, 1), sum", "(2, 2)"}},
      {Kind::reducescatter,
       "op",
       [](Request& request) { request.op = ReduceOp::max; },
       {"sum", "max"}},
      {Kind::reduce,
       "root",
       [](Request& request) { request.root = SetRank(1); },
       {"root 0", "root 1"}},
      {Kind::reduce,
       "scale",
       [](Request& request) { request.prescale = 0.5; },
       {"rank 0 has reduce", "prescale 0.5"}},
      {Kind::alltoall,
       "row",
       [](Request& request) {
         request.tensors[0].dims = {2, 2};
       },
       {"alltoall of float32 (-1, 1)", "(-1, 2)"}},
      {Kind::alltoall,
       "kind",
       [](Request& request) { request.kind = Kind::allgather; },
       {"alltoall of", "allgather of"}},
      {Kind::gather,
       "root",
       [](Request& request) { request.root = SetRank(1); },
       {"root 0", "root 1"}},
      {Kind::gather,
       "dimensions",
       [](Request& request) { request.tensors[0].dims = {4}; },
       {"(-1, 1)", "(-1,)"}},
      {Kind::scatter,
       "dtype",
       [](Request& request) { request.dtype = Dtype::int32; },
       {"scatter of float32", "scatter of int32"}},
  };
  LocalWorld world(2, "RDMACOLL_LOG=error\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    for (const Disagreement& disagreement : cases) {
      std::vector<float> values(4, 1.f);
      Request request = in_place(disagreement.kind, Dtype::float32, values, disagreement.name);
      request.tensors[0].dims = {4, 1};
      if (rank == 1) disagreement.change(request);
      const Status status = run(world.rank(rank), std::move(request));
      EXPECT_EQ(status.code(), Code::mismatch) << disagreement.name;
      for (const char* part : disagreement.said) {
        EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
      }
    }
  });
}

TEST(Splits, that_do_not_fit_are_refused_with_the_numbers) {
  LocalWorld world(1, "RDMACOLL_LOG=error\n");
  if (HasFatalFailure()) return;
  const auto refused = [&](Kind kind, std::vector<int64_t> dims, std::vector<int64_t> splits) {
    std::vector<float> values(64, 1.f);
    Request request = in_place(kind, Dtype::float32, values);
    request.tensors[0].dims = std::move(dims);
    request.splits = std::move(splits);
    const Status status = check(request, SetRank(0), 3);
    EXPECT_EQ(status.code(), Code::invalid);
    return status.message();
  };
  for (const Kind kind : {Kind::alltoall, Kind::scatter}) {
    EXPECT_EQ(refused(kind, {6, 2}, {1, 2, 4}),
              "splits (1, 2, 4) are 7 rows together, but the tensor has 6.");
    EXPECT_EQ(refused(kind, {6}, {7, -1, 0}), "splits (7, -1, 0) has a negative number of rows.");
    EXPECT_EQ(refused(kind, {6}, {3, 3}), "splits has 2 numbers, but there are 3 ranks.");
    EXPECT_NE(refused(kind, {2, 0}, {INT64_MAX, INT64_MAX, 4}).find("but the tensor has 2"),
              std::string::npos);
    EXPECT_NE(refused(kind, {}, {}).find("a scalar has none: reshape it to (1,)"),
              std::string::npos);
  }
  EXPECT_NE(refused(Kind::alltoall, {7}, {}).find("cannot cut 7 rows in 3 equal parts"),
            std::string::npos);
  EXPECT_NE(refused(Kind::reducescatter, {}, {}).find("a scalar has none"), std::string::npos);
}

TEST(Rows, that_would_not_fit_in_a_message_are_refused) {
  std::vector<float> values(3000, 1.f);
  Request request = in_place(Kind::alltoall, Dtype::float32, values);
  EXPECT_TRUE(check(request, SetRank(0), 3000).ok());  // all get as many: one number
  request.splits.assign(1000, 3);
  EXPECT_TRUE(check(request, SetRank(0), 1000).ok());
  request.splits.assign(3000, 1);
  request.splits[0] = 2;
  request.splits[1] = 0;
  const Status status = check(request, SetRank(0), 3000);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("alltoall of 1 tensors among 3000 ranks"), std::string::npos)
      << status.message();
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
    EXPECT_EQ(status.detail().ranks, std::vector<JobRank>{JobRank(1)});
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
    EXPECT_EQ(status.detail().rank, JobRank(1));
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
  broadcast.root = SetRank(3);
  EXPECT_EQ(run(world.rank(0), broadcast).code(), Code::invalid);
}

int count_entries(const char* folder) {
  int entries = 0;
  DIR* handle = opendir(folder);
  while (readdir(handle) != nullptr) ++entries;
  closedir(handle);
  return entries;
}

// The address sanitizer keeps freed memory back for a while, in maps of its own without a name:
// there only those of files and of shared memory are counted.
int count_maps() {
  std::ifstream maps("/proc/self/maps");
  int lines = 0;
  for (std::string line; std::getline(maps, line);) {
    if (!kSanitized || line.find('/') != std::string::npos) ++lines;
  }
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
  // One leaked map for each start would add 80. The allocator adds or removes a few of its own.
  EXPECT_LE(count_maps(), maps + 30);
}

}  // namespace
}  // namespace rdmacoll
