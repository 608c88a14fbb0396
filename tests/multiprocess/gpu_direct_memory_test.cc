// Memory of GPUs that comes, goes and is refused, in whole sessions whose NICs access it.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/runtime_library.h"
#include "multiprocess/direct_world.h"

namespace rdmacoll {
namespace {

// Freed addresses are given again at once, with another buffer id. A GPU has two arrays at a time,
// of three sizes, which can begin at 13 addresses.
TEST(GpuDirectMemory, that_is_freed_and_allocated_anew_is_never_reached_by_an_old_key) {
  for (const int model : {0, 1, 4}) {
    DirectWorld world(2, model);
    std::mutex mutex;
    std::set<std::byte*> addresses;
    world.each([&](int rank) {
      const std::unique_ptr<DeviceCaller> own = world.caller(rank);
      for (int step = 0; step < 30; ++step) {
        const std::size_t count = 60'000 + 40'000 * (static_cast<std::size_t>(step) % 3);
        std::vector<float> values(count, static_cast<float>(rank * 100 + step));
        Request request = in_place(Kind::broadcast, Dtype::float32, values, cat("step", step));
        request.root = SetRank(step % 2);
        ASSERT_TRUE(own->take(world.rank(rank), request).ok());
        std::byte* const memory = request.tensors[0].output;
        {
          const std::lock_guard lock(mutex);
          addresses.insert(memory);
        }
        const Status status = run(world.rank(rank), std::move(request));
        ASSERT_TRUE(status.ok()) << status.message();
        own->download(values.data(), memory, count * sizeof(float));
        ASSERT_EQ(values, std::vector<float>(count, static_cast<float>(step % 2 * 100 + step)));
        own->free();
      }
    });
    EXPECT_LT(addresses.size(), 30U) << "of 60 arrays";
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

// As rdmacoll.engine.empty() gives it.
TEST(GpuDirectMemory, of_the_engine_is_registered_before_its_first_operation) {
  constexpr std::size_t kCount = 60'000, kBytes = kCount * sizeof(float);
  for (const int model : {0, 1}) {
    DirectWorld world(2, model);
    const auto registered = [&] {
      const verbs_sim::CudaGpuCounters counters = world.gpus().counters();
      return counters.dma_bufs + counters.peer_mappings;
    };
    std::vector<std::shared_ptr<std::byte[]>> memory(2);
    world.each([&](int rank) {
      const Status status = world.rank(rank).allocate(0, kBytes, memory[rank]);
      ASSERT_TRUE(status.ok()) << status.message();
    });
    const uint64_t before = registered();
    EXPECT_EQ(before, 2U) << "once for each rank";
    world.each([&](int rank) {
      const std::unique_ptr<DeviceCaller> own = world.caller(rank);
      std::vector<float> values(kCount, static_cast<float>(rank));
      own->upload(memory[rank].get(), values.data(), kBytes);
      Request request = in_place(Kind::broadcast, Dtype::float32, values, "weights");
      request.root = SetRank(1);
      request.tensors[0].input = request.tensors[0].output = memory[rank].get();
      ASSERT_TRUE(use_stream(world.rank(rank), own->stream(), request).ok());
      const Status status = run(world.rank(rank), std::move(request));
      ASSERT_TRUE(status.ok()) << status.message();
      own->download(values.data(), memory[rank].get(), kBytes);
      EXPECT_EQ(values, std::vector<float>(kCount, 1.0F));
    });
    EXPECT_EQ(registered(), before);
    EXPECT_EQ(world.sum("bytes_direct_received"), kBytes);
  }
}

// cuMemAllocAsync gives memory that no NIC reaches.
TEST(GpuDirectMemory, that_is_not_capable_is_staged_and_named_once) {
  RuntimeLibrary library(machine_of(0).library());
  cuda::Result (*allocate)(cuda::Address * address, std::size_t bytes, cuda::StreamHandle stream);
  cuda::Result (*release)(cuda::Address address, cuda::StreamHandle stream);
  library.need("cuMemAllocAsync", allocate);
  library.need("cuMemFreeAsync", release);
  testing::internal::CaptureStderr();
  {
    DirectWorld world(2, 0);
    world.each([&](int rank) {
      const std::unique_ptr<DeviceCaller> own = world.caller(rank);
      const auto stream = reinterpret_cast<cuda::StreamHandle>(own->stream());
      std::vector<float> values(60'000, static_cast<float>(rank));
      const std::size_t bytes = values.size() * sizeof(float);
      cuda::Address address = 0;
      ASSERT_EQ(allocate(&address, bytes, stream), cuda::kSuccess);
      auto* const memory = reinterpret_cast<std::byte*>(address);
      own->upload(memory, values.data(), bytes);
      for (int turn = 0; turn < 3; ++turn) {
        Request request = in_place(Kind::broadcast, Dtype::float32, values, "weights");
        request.root = SetRank(1);
        request.tensors[0].input = request.tensors[0].output = memory;
        ASSERT_TRUE(use_stream(world.rank(rank), own->stream(), request).ok());
        const Status status = run(world.rank(rank), std::move(request));
        ASSERT_TRUE(status.ok()) << status.message();
      }
      own->download(values.data(), memory, bytes);
      EXPECT_EQ(values, std::vector<float>(values.size(), 1.0F));
      ASSERT_EQ(release(address, stream), cuda::kSuccess);
      own->synchronize();
    });
    EXPECT_EQ(world.sum("bytes_direct_received"), 0U);
    EXPECT_GT(world.sum("bytes_staged"), 0U);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string reason = "It is not capable of GPUDirect RDMA, as memory of cudaMallocAsync.";
  int times = 0;
  for (std::size_t at = said.find(reason); at != said.npos; at = said.find(reason, at + 1)) ++times;
  EXPECT_EQ(times, 2) << "one of each rank: " << said;
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

}  // namespace
}  // namespace rdmacoll
