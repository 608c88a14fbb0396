// All parts with a driver's library: the fake one beside this program, or the one that
// RDMACOLL_CUDA_LIBRARY names. The fake one ends the process if it is misused, and if the host
// touches memory of a GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <random>

#include "compute/inline.h"
#include "cuda/cuda_memory.h"
#include "unit/compute_fixture.h"

namespace rdmacoll::cuda {
namespace {

using compute_test::Counting;
using compute_test::kLimit;

std::string library() {
  const char* const named = std::getenv("RDMACOLL_CUDA_LIBRARY");
  if (named != nullptr) return named;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libcuda_sim.so";
}

class CudaLibrary : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("CUDA_SIM_MACHINE", "k80", 0);
    const Status status = Driver::open(library(), driver);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(MemoryPool::create(std::size_t{64} << 20, pool).ok());
    start();
  }
  void TearDown() override { stop(); }
  void start() {
    const auto wake = [this] {
      const std::lock_guard lock(mutex);
      ++wakes;
      woken.notify_all();
    };
    ASSERT_TRUE(CudaMemory::open({library(), *pool, Log(LogLevel::warning, 0), wake}, memory).ok());
    compute = std::make_unique<GpuCompute>(std::make_unique<InlineCompute>(), clock);
    compute->open(memory->parts());
    ASSERT_TRUE(memory->find_stream(kLegacyStream, gpu).ok());
  }
  void stop() {
    compute.reset();
    memory->close();
    memory.reset();
    EXPECT_EQ(current(), nullptr);
  }
  ContextHandle current() const {
    ContextHandle context = nullptr;
    EXPECT_EQ(driver->call.cuCtxGetCurrent(&context), kSuccess);
    return context;
  }
  void copy(std::vector<Piece> to, std::vector<Piece> from) {
    jobs.push_back({std::move(to), std::move(from), {}});
    Job& job = jobs.back();
    job.operands = {{.pieces = job.from}};
    ASSERT_TRUE(compute->submit({.to = job.to, .sources = job.operands, .on_gpu = true}).ok());
    EXPECT_EQ(current(), nullptr);
  }
  // Sleeps until `count` jobs have succeeded.
  void finish(std::size_t count) {
    for (std::size_t ended = 0; ended < count;) {
      const int before = wakes;
      Counting sink;
      compute->poll(sink);
      for (const Status& status : sink.statuses) ASSERT_TRUE(status.ok()) << status.message();
      ended += sink.cookies.size();
      if (!sink.cookies.empty() || !compute->arm()) continue;
      std::unique_lock lock(mutex);
      ASSERT_TRUE(woken.wait_for(lock, kLimit, [&] { return wakes > before; }));
    }
    EXPECT_EQ(current(), nullptr);
  }

  struct Job {
    std::vector<Piece> to, from;
    std::vector<Operand> operands;
  };
  const Driver* driver = nullptr;
  SteadyClock clock;
  std::unique_ptr<MemoryPool> pool;
  std::unique_ptr<CudaMemory> memory;
  std::unique_ptr<GpuCompute> compute;
  std::list<Job> jobs;
  Gpu gpu = kHost;
  std::mutex mutex;
  std::condition_variable woken;
  std::atomic<int> wakes{0};
};

TEST_F(CudaLibrary, copies_to_the_gpu_and_back) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    // Small pieces are copied by kernels, and large ones by copy engines.
    const std::size_t count = 1 + random() % 40;
    const std::size_t each = 1 + random() % (round % 2 == 0 ? 3000 : 200'000);
    const std::size_t bytes = count * each;
    const auto device = memory->allocate(gpu, bytes + count * 3);
    const auto other = memory->allocate(gpu, bytes);
    ASSERT_NE(other, nullptr);
    Gpu found = kHost;
    ASSERT_TRUE(memory->find(device.get(), found).ok());
    ASSERT_EQ(found, gpu);
    std::byte* const from = pool->allocate(bytes);
    std::byte* const to = pool->allocate(bytes);
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(random());
    std::memset(to, 0, bytes);
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < count; ++i) {
      pieces.push_back({device.get() + i * (each + 3), each, gpu});
    }
    copy(pieces, {{from, bytes}});
    finish(1);
    copy({{other.get(), bytes, gpu}}, pieces);
    finish(1);
    copy({{to, bytes}}, {{other.get(), bytes, gpu}});
    finish(1);
    ASSERT_EQ(std::memcmp(to, from, bytes), 0) << count << " pieces of " << each << " bytes";
    pool->free(from);
    pool->free(to);
  }
}

TEST_F(CudaLibrary, copies_both_ways_at_once) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const auto device = memory->allocate(gpu, 8 * kBytes);
  std::byte* const host = pool->allocate(8 * kBytes);
  for (std::size_t i = 0; i < 8 * kBytes; ++i) host[i] = static_cast<std::byte>(i * 7 / 5);
  for (std::size_t i = 0; i < 4; ++i) {
    copy({{device.get() + i * kBytes, kBytes, gpu}}, {{host + i * kBytes, kBytes}});
  }
  finish(4);
  for (std::size_t i = 0; i < 4; ++i) {
    copy({{host + (4 + i) * kBytes, kBytes}}, {{device.get() + i * kBytes, kBytes, gpu}});
    copy({{device.get() + (4 + i) * kBytes, kBytes, gpu}}, {{host + i * kBytes, kBytes}});
  }
  finish(8);
  EXPECT_EQ(std::memcmp(host, host + 4 * kBytes, 4 * kBytes), 0);
}

TEST_F(CudaLibrary, waits_for_the_caller_s_stream_and_wakes_the_engine) {
  const ScopedContext scope(memory->parts().gpus, gpu);
  StreamHandle stream = nullptr;
  ASSERT_EQ(driver->call.cuStreamCreate(&stream, kStreamNonBlocking), kSuccess);
  std::atomic<bool> may_go{false};
  const auto wait = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) usleep(100);
  };
  // The first one loads kernels, and this waits for the work of all streams.
  std::shared_ptr<StreamOrder> first;
  ASSERT_TRUE(memory->order(kLegacyStream, gpu, first).ok());
  for (const uint64_t number : {reinterpret_cast<uint64_t>(stream), uint64_t{kLegacyStream}}) {
    may_go = false;
    ASSERT_EQ(driver->call.cuLaunchHostFunc(reinterpret_cast<StreamHandle>(number), wait, &may_go),
              kSuccess);
    std::shared_ptr<StreamOrder> order;
    const Status status = memory->order(number, gpu, order);
    ASSERT_TRUE(status.ok()) << status.message();
    bool is_reached = true;
    ASSERT_TRUE(order->reached(is_reached).ok());
    EXPECT_FALSE(is_reached);
    const int before = wakes;
    EXPECT_TRUE(order->arm());
    may_go = true;
    {
      std::unique_lock lock(mutex);
      ASSERT_TRUE(woken.wait_for(lock, kLimit, [&] { return wakes > before; }));
    }
    ASSERT_TRUE(order->reached(is_reached).ok());
    EXPECT_TRUE(is_reached);
  }
  ASSERT_EQ(driver->call.cuStreamDestroy_v2(stream), kSuccess);
}

TEST_F(CudaLibrary, starts_and_stops_many_times) {
  for (int i = 0; i < 50; ++i) {
    const auto device = memory->allocate(gpu, 4096);
    std::byte* const host = pool->allocate(4096);
    std::memset(host, i, 4096);
    copy({{device.get(), 4096, gpu}}, {{host, 2048}, {host, 2048}});
    finish(1);
    pool->free(host);
    stop();
    start();
  }
}

}  // namespace
}  // namespace rdmacoll::cuda
