// Jobs with memory of GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "compute/inline.h"
#include "cuda/gpu_compute.h"
#include "unit/compute_fixture.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using compute_test::Counting;
using compute_test::kLimit;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kPoolBytes = std::size_t{64} << 20;

class CudaCompute : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MemoryPool::create(kPoolBytes, pool).ok());
    ASSERT_TRUE(gpus->use(0, first).ok());
    ASSERT_TRUE(gpus->use(1, second).ok());
    ScriptedCuda::current() = {&cuda.contexts[1]};  // the caller's
    start();
  }
  void TearDown() override {
    stop();
    EXPECT_THAT(ScriptedCuda::current(), ElementsAre(&cuda.contexts[1]));
    EXPECT_THAT(cuda.misuse, IsEmpty());
    EXPECT_EQ(cuda.live_streams, 0);
    EXPECT_EQ(cuda.live_events, 0);
    EXPECT_THAT(cuda.pinned, IsEmpty());
  }
  void start() {
    events = std::make_unique<EventPool>(cuda.driver());
    pinned = std::make_unique<PinnedPool>(*gpus, *pool, Log(LogLevel::warning, 0));
    sleeper = std::make_shared<Sleeper>([this] { wake(); });
    parts = std::make_unique<GpuParts>(GpuParts{*gpus, *events, *pinned, sleeper});
    compute = std::make_unique<GpuCompute>(std::make_unique<InlineCompute>(), clock);
    compute->open(*parts);
  }
  void stop() {
    compute.reset();
    parts.reset();
    pinned.reset();
    events.reset();
  }
  void wake() {
    const std::lock_guard lock(mutex);
    ++wakes;
    woken.notify_all();
  }

  // Submits a copy, whose pieces stay until the end of the test.
  void copy(std::vector<Piece> to, std::vector<Piece> from, uint64_t cookie = 0) {
    ASSERT_TRUE(offer(std::move(to), std::move(from), cookie).ok());
  }
  Status offer(std::vector<Piece> to, std::vector<Piece> from, uint64_t cookie) {
    jobs.push_back({std::move(to), std::move(from), {}});
    Job& job = jobs.back();
    job.operands = {{.pieces = job.from}};
    return compute->submit(
        {.to = job.to, .sources = job.operands, .cookie = cookie, .on_gpu = true});
  }
  Counting poll() {
    Counting sink;
    compute->poll(sink);
    return sink;
  }
  // Lets the streams run, and expects that all jobs succeed.
  Counting finish() {
    cuda.run();
    Counting sink = poll();
    for (const Status& status : sink.statuses) EXPECT_TRUE(status.ok()) << status.message();
    return sink;
  }
  Stream& stream(std::size_t number) { return *cuda.streams.at(number); }

  struct Job {
    std::vector<Piece> to, from;
    std::vector<Operand> operands;
  };
  ScriptedCuda cuda{2};
  SteadyClock clock;
  std::shared_ptr<Gpus> gpus = std::make_shared<Gpus>(cuda.driver());
  std::unique_ptr<MemoryPool> pool;
  std::unique_ptr<EventPool> events;
  std::unique_ptr<PinnedPool> pinned;
  std::shared_ptr<Sleeper> sleeper;
  std::unique_ptr<GpuParts> parts;
  std::unique_ptr<GpuCompute> compute;
  std::list<Job> jobs;
  Gpu first = kHost, second = kHost;
  std::mutex mutex;
  std::condition_variable woken;
  int wakes = 0;
};

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
  EXPECT_EQ(cuda.count("cuMemcpyPeerAsync"), 1);
  EXPECT_EQ(cuda.count("cuMemcpyDtoDAsync"), 1);
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
  EXPECT_THAT(sink.cookies, ElementsAre(1));
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

TEST_F(CudaCompute, never_loses_a_wake_up) {
  std::byte* const device = cuda.place(8);
  std::byte* const host = pool->allocate(8);
  std::atomic<bool> ends{false};
  std::thread gpu([&] {
    std::minstd_rand random;
    while (!ends) {
      for (auto pause = random() % 400; pause > 0; --pause) std::this_thread::yield();
      cuda.run();
    }
  });
  for (uint64_t step = 0; step < 500; ++step) {
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
  copy({{host + PinnedPool::kSlabBytes - 4, 8}}, {{device, 8, first}});
  finish();
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
