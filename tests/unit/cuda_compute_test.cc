// Jobs with memory of GPUs.
#include <cstring>
#include <random>
#include <thread>

#include "unit/cuda_compute_fixture.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(CudaCompute, copies_pieces_between_host_and_gpus) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const std::size_t bytes = 1 + random() % 2000;
    std::vector<std::byte> wanted(bytes), got(bytes);
    for (std::byte& byte : wanted) byte = static_cast<std::byte>(random());
    // Cuts `bytes` into pieces on the host and on both GPUs.
    const auto cut = [&](const std::byte* fill) {
      std::vector<Piece> pieces;
      for (std::size_t at = 0; at < bytes;) {
        const std::size_t length = std::min(bytes - at, random() % (bytes / 2 + 2));
        const Gpu gpu =
            static_cast<Gpu>(random() % 3) == 2 ? kHost : static_cast<Gpu>(random() % 2);
        std::byte* const data = gpu == kHost ? pool->allocate(length + 1)
                                             : cuda.place(length + 1, gpus->facts(gpu).ordinal);
        if (fill != nullptr) std::memcpy(data, fill + at, length);
        pieces.push_back({data, length, gpu});
        at += length;
      }
      return pieces;
    };
    const std::vector<Piece> to = cut(nullptr);
    copy(to, cut(wanted.data()), static_cast<uint64_t>(round));
    EXPECT_THAT(finish().cookies, ElementsAre(round));
    gather(to, got.data());
    ASSERT_EQ(got, wanted) << "round " << round;
  }
}

TEST_F(CudaCompute, reports_a_job_only_after_its_last_copy) {
  std::byte* const device = cuda.place(64);
  std::byte* const host = pool->allocate(64);
  copy({{device, 32, first}, {host, 32}}, {{host + 32, 32}, {device + 32, 32, first}}, 7);
  ASSERT_EQ(cuda.streams.size(), 2u);
  EXPECT_THAT(poll().cookies, IsEmpty());
  for (const std::size_t lane : {1u, 0u}) {
    cuda.step(stream(lane));  // the copy
    EXPECT_THAT(poll().cookies, IsEmpty());
    cuda.step(stream(lane));  // its event
  }
  EXPECT_THAT(poll().cookies, ElementsAre(7));
}

TEST_F(CudaCompute, copies_both_ways_at_once) {
  std::byte* const device = cuda.place(64);
  std::byte* const host = pool->allocate(64);
  copy({{host, 32}}, {{device, 32, first}}, 1);
  copy({{device + 32, 32, first}}, {{host + 32, 32}}, 2);
  copy({{device + 32, 8, first}}, {{device, 8, first}}, 3);
  copy({{cuda.place(8, 1), 8, second}}, {{device, 8, first}}, 4);
  ASSERT_EQ(cuda.streams.size(), 4u);
  while (cuda.step(stream(1))) {
  }
  EXPECT_THAT(poll().cookies, ElementsAre(2));
  while (cuda.step(stream(0))) {
  }
  EXPECT_THAT(poll().cookies, ElementsAre(1));
  EXPECT_EQ(finish().cookies.size(), 2u);
  EXPECT_EQ(cuda.count("cuMemcpyDtoDAsync"), 2);
  EXPECT_EQ(compute->gpu_counters().bytes_staged, 64u);
  EXPECT_EQ(compute->bytes_copied(), 80u);
}

TEST_F(CudaCompute, hands_jobs_of_host_memory_on) {
  std::byte from[8]{std::byte{5}}, to[8]{};
  const Piece source{from, 8}, target{to, 8};
  const Operand operand{.pieces = {&source, 1}};
  const ComputeJob job{.to = {&target, 1}, .sources = {&operand, 1}, .cookie = 3};
  ASSERT_TRUE(compute->submit(job).ok());
  EXPECT_THAT(poll().cookies, ElementsAre(3));
  EXPECT_EQ(to[0], std::byte{5});
  EXPECT_TRUE(compute->perform_at_once(job, 8).ok());
  EXPECT_EQ(compute->bytes_copied(), 16u);
  EXPECT_EQ(compute->next_deadline(), kNever);
  EXPECT_TRUE(cuda.streams.empty());
}

TEST_F(CudaCompute, makes_nothing_new_in_the_steady_state) {
  std::byte* const device = cuda.place(64);
  std::byte* const host = pool->allocate(64);
  std::map<std::string, int> before;
  for (int step = 0; step < 100; ++step) {
    if (step == 1) before = cuda.calls;
    copy({{host, 32}}, {{device, 32, first}});
    copy({{device + 32, 32, first}}, {{host + 32, 32}});
    EXPECT_TRUE(compute->arm());
    EXPECT_EQ(finish().cookies.size(), 2u);
  }
  for (const char* const call : {"cuMemAlloc", "cuMemFree", "cuMemHostRegister", "cuStreamCreate",
                                 "cuEventCreate", "cuEventDestroy", "cuStreamSynchronize"}) {
    EXPECT_EQ(cuda.count(call), before[call]) << call;
  }
}

TEST_F(CudaCompute, does_not_spoil_a_graph_that_another_thread_captures) {
  std::byte* const device = cuda.place(8);
  cuda.is_captured = true;
  copy({{pool->allocate(8), 8}}, {{device, 8, first}}, 1);
  EXPECT_THAT(poll().cookies, IsEmpty());
  EXPECT_TRUE(compute->arm());
  EXPECT_THAT(finish().cookies, ElementsAre(1));
  EXPECT_EQ(ScriptedCuda::capture_mode(), 0);
}

TEST_F(CudaCompute, is_busy_while_too_many_jobs_are_under_way) {
  std::byte* const device = cuda.place(8);
  std::byte* const host = pool->allocate(8);
  for (uint64_t i = 0; i < 256; ++i) copy({{host, 8}}, {{device, 8, first}}, i);
  EXPECT_TRUE(offer({{host, 8}}, {{device, 8, first}}, 256).is_busy());
  EXPECT_EQ(finish().cookies.size(), 256u);
  EXPECT_TRUE(offer({{host, 8}}, {{device, 8, first}}, 256).ok());
  EXPECT_THAT(finish().cookies, ElementsAre(256));
}

TEST_F(CudaCompute, names_the_gpu_whose_work_has_failed) {
  std::byte* const device = cuda.place(8);
  std::byte* const host = pool->allocate(8);
  copy({{host, 8}}, {{device, 8, first}}, 1);
  copy({{host, 8}}, {{device, 8, first}}, 2);
  cuda.fails["cuEventQuery"] = kIllegalAddress;
  EXPECT_FALSE(compute->arm());
  const Counting sink = poll();
  EXPECT_THAT(sink.cookies, ElementsAre(1, 2));
  for (const Status& status : sink.statuses) {
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("a copy on the GPU cuda:0 (Tesla K80, GPU-1010"),
                      HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"), HasSubstr("compute-sanitizer")));
  }
}

TEST_F(CudaCompute, waits_for_the_copies_before_a_refused_one) {
  std::byte* const device = cuda.place(8);
  std::byte* const host = pool->allocate(16);
  cuda.fails["cuMemcpyHtoDAsync"] = kOutOfMemory;
  copy({{host, 8}, {device, 8, first}}, {{device, 8, first}, {host + 8, 8}}, 1);
  EXPECT_THAT(poll().cookies, IsEmpty());
  cuda.run();
  const Counting sink = poll();
  ASSERT_THAT(sink.cookies, ElementsAre(1));
  EXPECT_THAT(sink.statuses.front().message(), HasSubstr("a copy of 8 B on the GPU cuda:0"));
}

TEST_F(CudaCompute, wakes_the_engine_when_the_oldest_job_ends) {
  std::byte* const device = cuda.place(8);
  std::byte* const host = pool->allocate(8);
  copy({{host, 8}}, {{device, 8, first}}, 1);
  copy({{host, 8}}, {{device, 8, first}}, 2);
  EXPECT_TRUE(compute->arm());
  EXPECT_LE(compute->next_deadline(), clock.now() + kSecond);
  cuda.step(stream(0));
  cuda.step(stream(0));  // the first job has ended
  for (int i = 0; i < 2; ++i) cuda.step(stream(1));
  EXPECT_EQ(wakes, 1);
  EXPECT_FALSE(compute->arm());
  EXPECT_THAT(poll().cookies, ElementsAre(1));
  EXPECT_TRUE(compute->arm());
  EXPECT_THAT(finish().cookies, ElementsAre(2));
  EXPECT_EQ(wakes, 2);
  EXPECT_TRUE(compute->arm());
}

TEST_F(CudaCompute, looks_at_jobs_whose_end_the_driver_does_not_announce_and_says_so_once) {
  testing::internal::CaptureStderr();
  for (const char* call : {"cuLaunchHostFunc", "cuStreamWaitEvent"}) {
    cuda.fails = {{call, kOutOfMemory}};
    const int before = cuda.count(call);
    std::byte* const device = cuda.place(16);
    std::byte* const host = pool->allocate(16);
    copy({{host, 8}}, {{device, 8, first}}, 1);
    copy({{device + 8, 8, first}}, {{host + 8, 8}}, 2);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(compute->arm()) << "it may sleep until its deadline";
    EXPECT_LE(compute->next_deadline(), clock.now() + kSecond);
    EXPECT_EQ(cuda.count(call), before + 2) << "once for each lane";
    EXPECT_EQ(finish().cookies.size(), 2u);
    EXPECT_EQ(wakes, 0);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("warning: cuLaunchHostFunc failed"),
                          HasSubstr("So nothing wakes rdmacoll when work on GPUs ends")));
  EXPECT_EQ(said.find("nothing wakes"), said.rfind("nothing wakes"));
}

TEST_F(CudaCompute, wakes_the_engine_for_a_job_that_ends_after_the_last_look) {
  std::byte* const device = cuda.place(8);
  copy({{pool->allocate(8), 8}}, {{device, 8, first}}, 1);
  cuda.after_query = [this] { cuda.run(); };
  EXPECT_TRUE(compute->arm());
  EXPECT_EQ(wakes, 1);
  EXPECT_THAT(finish().cookies, ElementsAre(1));
}

TEST_F(CudaCompute, never_loses_a_wake_up) {
  std::byte* const device = cuda.place(8);
  std::byte* const host = pool->allocate(8);
  std::atomic<bool> ends{false};
  std::thread gpu([&] {
    std::minstd_rand random;
    while (!ends) {
      for (auto pause = random() % 10; pause > 0; --pause) std::this_thread::yield();
      cuda.run();
    }
  });
  for (uint64_t step = 0; step < 200; ++step) {
    copy({{host, 8}}, {{device, 8, first}}, step);
    for (std::size_t ended = 0; ended == 0; ended = poll().cookies.size()) {
      const int before = wakes;
      if (!compute->arm()) continue;
      std::unique_lock lock(mutex);
      ASSERT_TRUE(woken.wait_for(lock, kLimit, [&] { return wakes > before; })) << "step " << step;
    }
  }
  ends = true;
  gpu.join();
}

TEST_F(CudaCompute, uses_memory_that_cannot_be_pinned) {
  std::byte* const device = cuda.place(8);
  std::byte* const host = pool->allocate(8);
  device[0] = std::byte{9};
  cuda.fails["cuMemHostRegister"] = kOutOfMemory;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    copy({{host, 8}}, {{device, 8, first}});
    finish();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("pinning 16 MiB for the GPU cuda:0"), HasSubstr("slower")));
  EXPECT_EQ(said.find("pinning"), said.rfind("pinning"));
  EXPECT_EQ(host[0], std::byte{9});
  EXPECT_EQ(cuda.count("cuMemHostRegister"), 1);
}

TEST_F(CudaCompute, pins_only_the_slabs_in_use) {
  std::byte* const device = cuda.place(8);
  std::byte* const host = pool->allocate(3 * PinnedPool::kSlabBytes);
  for (int i = 0; i < 8; ++i) device[i] = static_cast<std::byte>(i + 1);
  std::byte* const across = host + PinnedPool::kSlabBytes - 4;
  copy({{across, 8}}, {{device, 8, first}});
  finish();
  EXPECT_EQ(std::memcmp(across, device, 8), 0);
  EXPECT_EQ(cuda.pinned.size(), 2u);
  EXPECT_EQ(pinned->pinned_bytes(), 2 * PinnedPool::kSlabBytes);
  std::byte foreign[8];
  copy({{foreign, 8}}, {{device, 8, first}});
  finish();
  EXPECT_EQ(cuda.pinned.size(), 2u);
}

TEST_F(CudaCompute, leaves_nothing_behind_after_many_starts) {
  std::byte* const device = cuda.place(8);
  for (int i = 0; i < 1000; ++i) {
    std::byte* const host = pool->allocate(8);
    copy({{host, 8}}, {{device, 8, first}});
    EXPECT_EQ(finish().cookies.size(), 1u);
    stop();
    EXPECT_EQ(cuda.live_streams, 0);
    EXPECT_EQ(cuda.live_events, 0);
    EXPECT_THAT(cuda.pinned, IsEmpty());
    cuda.streams.clear();
    pool->free(host);
    start();
  }
}

}  // namespace
}  // namespace rdmacoll::cuda_test
