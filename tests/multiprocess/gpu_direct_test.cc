// Whole sessions whose NICs read and write memory of GPUs. A fake CUDA driver has the memory,
// simulated NICs register it through that driver, and a recorded PCIe tree decides the ways.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/runtime_library.h"
#include "multiprocess/direct_world.h"
#include "sanitized.h"

namespace rdmacoll {
namespace {

class GpuDirect : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  int model() const { return std::get<1>(GetParam()); }
};

TEST_P(GpuDirect, every_kind_has_its_results) {
  DirectWorld world(ranks(), model());
  if (HasFatalFailure()) return;
  for (const int64_t rows : {0, 3, 3000, 20'000}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::int64}) {
      if ((rows <= 3000 || kSanitized) && dtype != Dtype::float32) continue;
      std::vector<SimOperation> kinds = every_kind(ranks(), rows, rows == 3);
      for (SimOperation& operation : kinds) {
        operation.dtype = dtype;
        SCOPED_TRACE(cat(operation.name, " of ", rows, " rows"));
        world.run_kind(operation);
        if (HasFailure()) return;
      }
    }
    if (rows > 3) continue;
    EXPECT_EQ(world.gpus().counters().bytes_written, 0U) << "too small";
  }
  const GpuWays ways = kModels[model()].ways;
  EXPECT_EQ(world.sum("bytes_direct_sent") > 0, ways.sends);
  EXPECT_EQ(world.sum("bytes_direct_received") > 0, ways.receives);
  const verbs_sim::CudaGpuCounters counters = world.gpus().counters();
  EXPECT_EQ(counters.bytes_written, world.sum("bytes_direct_received"));
  EXPECT_EQ(counters.dma_bufs > 0, kModels[model()].has_dma_buf);
  EXPECT_EQ(counters.peer_mappings > 0, !kModels[model()].has_dma_buf);
  const std::string name = kModels[model()].name;
  EXPECT_EQ(counters.flushes_by_read > 0, name.find("by_reads") != name.npos);
  EXPECT_EQ(counters.flushes_by_call > 0, name.find("by_call") != name.npos || name == "k80");
}

INSTANTIATE_TEST_SUITE_P(hosts, GpuDirect,
                         testing::Combine(testing::Values(2, 3),
                                          testing::Range(0, static_cast<int>(std::size(kModels)))),
                         [](const auto& info) {
                           return cat(std::get<0>(info.param), "_",
                                      kModels[std::get<1>(info.param)].name);
                         });

// ---- the ways ----

// An array of the rank, which each rank has in place.
void broadcast_in_place(DirectWorld& world, std::size_t count) {
  world.each([&](int rank) {
    const std::unique_ptr<DeviceCaller> own = world.caller(rank);
    std::vector<float> values(count, static_cast<float>(rank));
    Request request = in_place(Kind::broadcast, Dtype::float32, values, "weights");
    request.root = SetRank(1);
    ASSERT_TRUE(own->take(world.rank(rank), request).ok());
    const std::byte* const memory = request.tensors[0].output;
    const Status status = run(world.rank(rank), std::move(request));
    ASSERT_TRUE(status.ok()) << status.message();
    own->download(values.data(), memory, count * sizeof(float));
    EXPECT_EQ(values, std::vector<float>(count, 1.0F));
  });
}

TEST(GpuDirectWay, of_each_direction_follows_the_setting) {
  struct Case {
    const char* setting;
    GpuWays ways;
  };
  constexpr std::size_t kCount = 300'000;
  const SimOperation gather{.kind = Kind::allgather,
                            .name = "rows",
                            .shapes = {{3, 1}},
                            .rows = {{20'000}, {25'000}, {30'000}}};
  for (const Case& one : {Case{"auto", kBoth}, Case{"off", kStaged}, Case{"force", kBoth},
                          Case{"send:off", kReceives}, Case{"receive:off", {.sends = true}}}) {
    SCOPED_TRACE(one.setting);
    DirectWorld world(3, 0, cat("RDMACOLL_GPUDIRECT=", one.setting, "\n"));
    broadcast_in_place(world, kCount);
    const uint64_t received = world.sum("bytes_direct_received");
    if (one.ways == kBoth) {
      EXPECT_EQ(received, 2 * kCount * sizeof(float));
    }
    world.run_kind(gather);
    const uint64_t staged = world.sum("bytes_staged");
    EXPECT_EQ(staged == 0, one.ways == kBoth) << "if NICs may do it all, they do";
    world.run_kind(sum_of(30'000));
    EXPECT_GT(world.sum("bytes_staged"), staged) << "processors make sums";
    EXPECT_EQ(world.sum("bytes_direct_sent") > 0, one.ways.sends);
    EXPECT_EQ(world.sum("bytes_direct_received") > 0, one.ways.receives);
    EXPECT_EQ(world.gpus().counters().bytes_read > 0, one.ways.sends);
    EXPECT_EQ(world.gpus().counters().bytes_written > 0, one.ways.receives);
    const std::string summary = world.rank(0).describe();
    const char* text = one.ways.sends ? "send direct" : "send staged";
    EXPECT_NE(summary.find(text), summary.npos) << summary;
  }
}

TEST(GpuDirectWay, of_some_ranks_alone_serves_mixed_worlds) {
  for (const int alone : {0, 1, 2}) {
    DirectWorld world(3, 1);
    for (const SimOperation& operation : every_kind(3, 20'000, alone == 1)) {
      SCOPED_TRACE(cat(operation.name, ", rank ", alone, " alone"));
      world.run_kind(operation, [&](int rank) { return rank != alone; });
      world.run_kind(operation, [&](int rank) { return rank == alone; });
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(world.sum("bytes_direct_received"), 0U);
  }
}

// ---- the end ----

TEST(GpuDirectEnd, of_a_rank_in_the_middle_is_named_and_gives_all_memory_back) {
  for (const int model : {0, 2}) {
    DirectWorld world(3, model);
    world.run_kind(broadcast_of(60'000));
    world.each([&](int rank) {
      if (rank == 2) return world.rank(rank).close("ValueError: no data");
      const std::unique_ptr<DeviceCaller> own = world.caller(rank);
      std::vector<float> values(200'000, 1.0F);
      Request request = in_place(Kind::allreduce, Dtype::float32, values, "gradients");
      ASSERT_TRUE(own->take(world.rank(rank), request).ok());
      const Status status = run(world.rank(rank), std::move(request));
      EXPECT_EQ(status.code(), Code::rank_failed) << status.message();
      EXPECT_EQ(status.detail().rank, JobRank(2)) << status.message();
    });
  }
}

TEST(GpuDirectEnd, of_a_nic_ends_transfers_of_its_peers) {
  DirectWorld world(2, 1);
  world.run_kind(broadcast_of(60'000));
  world.fabric().with([](verbs_sim::SimFabric& fabric) { fabric.take_away(1, kModels[1].nic); });
  world.each([&](int rank) {
    const std::unique_ptr<DeviceCaller> own = world.caller(rank);
    std::vector<float> values(200'000, 1.0F);
    Request request = in_place(Kind::broadcast, Dtype::float32, values, "weights");
    request.root = SetRank(0);
    ASSERT_TRUE(own->take(world.rank(rank), request).ok());
    const Status status = run(world.rank(rank), std::move(request));
    EXPECT_EQ(status.code(), Code::rank_failed) << status.message();
  });
}

std::ptrdiff_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator begin(folder);
  return std::distance(begin, std::filesystem::directory_iterator());
}

// 1,000 worlds take a minute or two.
int worlds() {
  const char* const asked = std::getenv("RDMACOLL_TEST_GPU_WORLDS");
  return asked != nullptr ? std::atoi(asked) : 6;
}

TEST(GpuDirectEnd, of_many_worlds_leaves_nothing_behind) {
  constexpr const char* kCounts[] = {"live allocations", "live pinned", "live streams",
                                     "live events"};
  RuntimeLibrary library(machine_of(0).library());
  long long (*count)(const char* name) = nullptr;
  library.need("cuda_sim_count", count);
  ASSERT_NE(count, nullptr);
  std::vector<long long> first;
  for (int turn = 0; turn < worlds(); ++turn) {
    {
      DirectWorld world(2, 0);
      world.run_kind(broadcast_of(60'000));
      world.run_kind(sum_of(30'000));
    }
    std::vector<long long> now;
    for (const char* name : kCounts) now.push_back(count(name));
    now.push_back(entries_of("/proc/self/fd"));
    if (turn == 0) first = now;
    EXPECT_EQ(now, first) << "turn " << turn;
  }
}

}  // namespace
}  // namespace rdmacoll
