// A compute whose GPUs are a table of functions.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>

#include "compute/inline.h"
#include "cuda/gpu_compute.h"
#include "unit/compute_fixture.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {

using compute_test::Counting;
using compute_test::kLimit;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

inline constexpr std::size_t kPoolBytes = std::size_t{64} << 20;

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
    events = std::make_shared<EventPool>(cuda.driver());
    pinned = std::make_unique<PinnedPool>(*gpus, *pool, Log(LogLevel::warning, 0));
    thread = std::make_unique<DriverThread>();
    modules = std::make_shared<GpuModules>(gpus, *thread, Log(LogLevel::warning, 0));
    sums = std::make_unique<GpuSums>(gpus, modules, *thread);
    sleeper = std::make_shared<Sleeper>([this] { wake(); }, Log(LogLevel::warning, 0));
    parts = std::make_unique<GpuParts>(
        GpuParts{*gpus, events, *modules, *pinned, *pool, *sums, sleeper});
    compute = std::make_unique<GpuCompute>(std::make_unique<InlineCompute>(), clock);
    compute->open(*parts);
  }
  void stop() {
    compute.reset();
    parts.reset();
    thread.reset();
    sums.reset();
    pinned.reset();
    modules.reset();
    events.reset();
  }
  void wake() {
    const std::lock_guard lock(mutex);
    ++wakes;
    woken.notify_all();
  }

  // Lets the GPU have its kernels for copies.
  void load_copies(Gpu gpu) {
    modules->prepare(gpu);
    thread->finish();
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
  // Lets the GPU make sums.
  void prepare_sums(Gpu gpu) {
    (void)sums->prepare(gpu);
    thread->finish();
    ASSERT_EQ(sums->prepare(gpu), GpuSums::State::ready);
  }
  // Submits a sum of int32, whose pieces stay until the end of the test.
  void sum(std::vector<Piece> to, const std::vector<std::vector<Piece>>& from, uint64_t cookie) {
    sums_of_test.emplace_back();
    Sum& job = sums_of_test.back();
    job.to = std::move(to);
    job.from = from;
    for (const std::vector<Piece>& pieces : job.from) job.operands.push_back({.pieces = pieces});
    ASSERT_TRUE(compute
                    ->submit({.dtype = Dtype::int32,
                              .to = job.to,
                              .sources = job.operands,
                              .cookie = cookie,
                              .on_gpu = true})
                    .ok());
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
  struct Sum {
    std::vector<Piece> to;
    std::vector<std::vector<Piece>> from;
    std::vector<Operand> operands;
  };
  std::list<Sum> sums_of_test;
  ScriptedCuda cuda{2};
  SteadyClock clock;
  std::shared_ptr<Gpus> gpus = std::make_shared<Gpus>(cuda.driver());
  std::unique_ptr<MemoryPool> pool;
  std::shared_ptr<EventPool> events;
  std::unique_ptr<DriverThread> thread;
  std::shared_ptr<GpuModules> modules;
  std::unique_ptr<GpuSums> sums;
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

}  // namespace rdmacoll::cuda_test
