// Whole sessions whose NICs read and write memory of GPUs. A fake CUDA driver has the memory,
// simulated NICs register it through that driver, and a recorded PCIe tree decides the ways.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/runtime_library.h"
#include "every_kind.h"
#include "multiprocess/device_arrays.h"
#include "multiprocess/direct_machine.h"
#include "multiprocess/local_world.h"
#include "sanitized.h"
#include "sim/values.h"

namespace rdmacoll {
namespace {

constexpr GpuWays kStaged{};
constexpr GpuWays kBoth{.sends = true, .receives = true};
constexpr GpuWays kReceives{.receives = true};

constexpr const char* kModule = "nvidia_peermem 16384 0 - Live 0x0\n";

// Each registers and flushes in another way.
constexpr DirectModel kModels[] = {
    {"dma_buf", R"({"base": "h100"})", "hgx_h100", "mlx5_0", "", 1, kBoth, true},
    {"module_flushed_by_call",
     R"({"base": "h100", "cuda": 12000, "driver": "525.60.13",
         "gpus": [{"name": "NVIDIA A100", "attributes": {"75": 8, "118": 0, "124": 0}}]})",
     "hgx_h100", "mlx5_0", kModule, 1, kBoth, false},
    {"small_bar1_flushed_by_reads",
     R"({"base": "h100", "cuda": 12000, "driver": "525.60.13",
         "gpus": [{"name": "NVIDIA A100", "bar1_bytes": 306184192,
                   "attributes": {"75": 8, "117": 0, "118": 0, "124": 0}}]})",
     "hgx_h100", "mlx5_0", kModule, 1, kBoth, false},
    {"dma_buf_flushed_by_reads",
     R"({"base": "h100", "gpus": [{"attributes": {"75": 8, "117": 0, "118": 0}}]})", "hgx_h100",
     "mlx5_0", "", 1, kBoth, true},
    {"k80", R"({"base": "k80", "gpus": [{"pci": "0000:06:00.0"}, {"pci": "0000:07:00.0"}]})",
     "k80_two_sockets", "mlx4_0", kModule, 2, kReceives, false},
};

DirectMachine& machine_of(int model) {
  static std::array<std::unique_ptr<DirectMachine>, std::size(kModels)> machines;
  auto& machine = machines.at(static_cast<std::size_t>(model));
  if (machine == nullptr) machine = std::make_unique<DirectMachine>(kModels[model], RC_TEST_DATA);
  return *machine;
}

// A world whose ranks are hosts, each with a NIC that accesses its GPU.
class DirectWorld {
 public:
  DirectWorld(int ranks, int model, const std::string& settings = "")
      : machine_(machine_of(model)), fabric_({.seed = static_cast<uint64_t>(91 + model)}) {
    machine_.gpus().reset_counters();
    std::vector<SessionMachine> hosts;
    for (int rank = 0; rank < ranks; ++rank) hosts.push_back(machine_.host(fabric_, rank));
    world_ = std::make_unique<LocalWorld>(ranks, machine_.settings() + settings, hosts);
  }
  ~DirectWorld() {
    world_.reset();
    EXPECT_EQ(fabric_.counters().changed_under_way, 0U);
    const verbs_sim::CudaGpuCounters counters = machine_.gpus().counters();
    EXPECT_EQ(counters.stale_accesses, 0U);
    EXPECT_EQ(counters.unsynchronized, 0U);
    EXPECT_TRUE(may_refuse_ || counters.bar1_refusals == 0U) << counters.bar1_refusals;
    EXPECT_EQ(machine_.gpus().bar1_used(), 0U);
  }

  int ranks() const { return world_->size(); }
  Session& rank(int rank) { return world_->rank(rank); }
  void each(const std::function<void(int rank)>& body) { world_->each(body); }
  verbs_sim::CudaGpus& gpus() { return machine_.gpus(); }
  verbs_sim::ThreadedFabric& fabric() { return fabric_; }
  void allow_refusals() { may_refuse_ = true; }
  // A caller on the rank's GPU.
  std::unique_ptr<DeviceCaller> caller(int rank) {
    return std::make_unique<DeviceCaller>(rank % machine_.model().gpus, machine_.driver());
  }
  uint64_t sum(std::string_view name) {
    uint64_t total = 0;
    for (int rank = 0; rank < ranks(); ++rank) total += metric(world_->rank(rank), name);
    return total;
  }
  // Runs the operation on all ranks, on GPUs where `is_on_gpu` says so, and checks its results.
  void run_kind(
      const SimOperation& operation,
      const std::function<bool(int)>& is_on_gpu = [](int) { return true; }) {
    each([&](int number) {
      const std::unique_ptr<DeviceCaller> own = caller(number);
      SimMemory memory;
      Request request = sim_request(operation, number, number % 2 == 0, memory);
      Status status = is_on_gpu(number) ? own->take(rank(number), request) : Status();
      ASSERT_TRUE(status.ok()) << status.message();
      const auto submitted = std::make_shared<Operation>(std::move(request));
      status = rank(number).driver().submit_and_wait(submitted, 60 * kSecond);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(submitted->done()) << rank(number).state();
      status = follow_end(*submitted);
      ASSERT_TRUE(status.ok()) << status.message();
      if (is_on_gpu(number)) own->fetch(*submitted);
      EXPECT_EQ(sim_error(operation, ranks(), number, *submitted), "")
          << operation.name << " on rank " << number;
    });
  }

 private:
  DirectMachine& machine_;
  verbs_sim::ThreadedFabric fabric_;
  std::unique_ptr<LocalWorld> world_;
  bool may_refuse_ = false;  // the driver may have no BAR1 for a registration
};

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

SimOperation broadcast_of(int64_t rows) {
  return {.kind = Kind::broadcast, .root = 1, .name = "weights", .shapes = {{rows, 2}, {rows, 3}}};
}
SimOperation sum_of(int64_t rows) { return {.name = "gradients", .shapes = {{rows, 2}, {rows}}}; }

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

// ---- memory that comes and goes ----

// Freed addresses are given again at once, with another buffer id.
TEST(GpuDirectMemory, that_is_freed_and_allocated_anew_is_never_reached_by_an_old_key) {
  for (const int model : {0, 1, 4}) {
    DirectWorld world(2, model);
    std::atomic<int> reused = 0;
    world.each([&](int rank) {
      const std::unique_ptr<DeviceCaller> own = world.caller(rank);
      std::byte* last = nullptr;
      for (int step = 0; step < 30; ++step) {
        const std::size_t count = 60'000 + 40'000 * (static_cast<std::size_t>(step) % 3);
        std::vector<float> values(count, static_cast<float>(rank * 100 + step));
        Request request = in_place(Kind::broadcast, Dtype::float32, values, cat("step", step));
        request.root = SetRank(step % 2);
        ASSERT_TRUE(own->take(world.rank(rank), request).ok());
        std::byte* const memory = request.tensors[0].output;
        reused += memory == last ? 1 : 0;
        last = memory;
        const Status status = run(world.rank(rank), std::move(request));
        ASSERT_TRUE(status.ok()) << status.message();
        own->download(values.data(), memory, count * sizeof(float));
        ASSERT_EQ(values, std::vector<float>(count, static_cast<float>(step % 2 * 100 + step)));
        own->free();
      }
    });
    EXPECT_GT(reused.load(), 5);
    EXPECT_GT(world.sum("bytes_direct_received"), 1'000'000U);
  }
}

// One allocation is larger than BAR1, and each of the others takes a third of it.
void use_much_memory(DirectWorld& world, const std::function<bool(int)>& is_on_gpu) {
  constexpr std::size_t kAllocations = 5, kCount = 50'000;
  world.each([&](int rank) {
    const std::unique_ptr<DeviceCaller> own = world.caller(rank);
    std::vector<std::byte*> arrays;
    for (std::size_t i = 0; i < kAllocations && is_on_gpu(rank); ++i) {
      arrays.push_back(own->allocate((i == 0 ? 300U : 80U) << 20));
    }
    for (int step = 0; step < 20; ++step) {
      std::vector<float> values(kCount, static_cast<float>(rank * 100 + step));
      Request request = in_place(Kind::broadcast, Dtype::float32, values, "weights");
      request.root = SetRank(0);
      // A place in the middle, which differs between the ranks.
      std::byte* memory = nullptr;
      if (is_on_gpu(rank)) {
        memory = arrays[static_cast<std::size_t>(step) % kAllocations] + (std::size_t{30} << 20) +
                 4 * static_cast<std::size_t>(rank);
        own->upload(memory, values.data(), kCount * sizeof(float));
        request.tensors[0].input = request.tensors[0].output = memory;
        ASSERT_TRUE(use_stream(world.rank(rank), own->stream(), request).ok());
      }
      const Status status = run(world.rank(rank), std::move(request));
      ASSERT_TRUE(status.ok()) << status.message();
      if (is_on_gpu(rank)) own->download(values.data(), memory, kCount * sizeof(float));
      ASSERT_EQ(values, std::vector<float>(kCount, static_cast<float>(step)));
    }
  });
}

TEST(GpuDirectMemory, beyond_bar1_takes_turns) {
  DirectWorld world(2, 2);
  use_much_memory(world, [](int rank) { return rank == 1; });
  EXPECT_EQ(world.sum("bytes_direct_received"), 20U * 50'000 * sizeof(float));
  EXPECT_EQ(world.sum("bytes_staged"), 0U);
}

// The two ranks are processes that do not know of each other's registrations.
TEST(GpuDirectMemory, of_ranks_that_share_a_small_bar1_is_staged_where_no_room_is_left) {
  DirectWorld world(2, 2);
  world.allow_refusals();
  use_much_memory(world, [](int) { return true; });
  EXPECT_GT(world.gpus().counters().bar1_refusals, 0U);
  EXPECT_GT(world.sum("bytes_direct_received"), 0U);
  EXPECT_GT(world.sum("bytes_staged"), 0U);
}

// Other processes may have taken BAR1. A batch is staged then, and later ones are direct again.
TEST(GpuDirectMemory, whose_registration_fails_is_staged_until_it_succeeds) {
  for (const int model : {0, 1}) {
    DirectWorld world(2, model);
    world.run_kind(sum_of(30'000));
    const auto received = [&] { return world.sum("bytes_direct_received"); };
    uint64_t before = received();
    EXPECT_GT(before, 0U);
    world.gpus().refuse_registrations(1, 1000);
    world.run_kind(broadcast_of(60'000));
    world.run_kind(sum_of(30'000));
    EXPECT_EQ(received(), before);
    world.gpus().refuse_registrations(0, 0);
    before = received();
    world.run_kind(broadcast_of(60'000));
    EXPECT_GT(received(), before);
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
