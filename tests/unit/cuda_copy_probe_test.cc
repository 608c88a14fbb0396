// The measurement of copies between pinned memory and GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/copy_probe.h"
#include "cuda/cuda_memory.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::IsEmpty;

// Each look at it takes some time.
class SlowClock final : public Clock {
 public:
  explicit SlowClock(Nanoseconds step) : step_(step) {}
  Nanoseconds now() const override { return now_ += step_; }

 private:
  const Nanoseconds step_;
  mutable Nanoseconds now_ = 0;
};

CopyTimes times_of(double start_us, double bytes_per_us) {
  const auto ns = [&](double bytes) {
    return static_cast<int64_t>(1000 * (start_us + bytes / bytes_per_us));
  };
  return {ns(kSmallProbe), ns(kLargeProbe)};
}

class CudaCopyProbe : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_THAT(cuda.misuse, IsEmpty());
    EXPECT_EQ(cuda.live_streams, 0);
    EXPECT_EQ(cuda.count("cuMemAlloc"), cuda.count("cuMemFree"));
    EXPECT_EQ(cuda.count("cuMemHostAlloc"), cuda.count("cuMemFreeHost"));
  }
  int copies() { return cuda.count("cuMemcpyDtoHAsync") + cuda.count("cuMemcpyHtoDAsync"); }

  ScriptedCuda cuda{1};
};

TEST_F(CudaCopyProbe, tells_the_costs_of_the_slower_direction) {
  const CopyCosts costs = costs_of(times_of(8, 50'000), times_of(10, 25'000));
  EXPECT_NEAR(costs.start_us, 10, 0.01);
  EXPECT_NEAR(costs.bytes_per_us, 25'000, 25);
  EXPECT_FALSE(costs_of(times_of(8, 50'000), {10'000, 9'000}).is_known()) << "nonsense";
  EXPECT_FALSE(costs_of({0, 0}, {0, 0}).is_known());
  EXPECT_FALSE(costs_of({1, 1'000'000}, {1, 1'000'000}).is_known()) << "no start";
}

TEST_F(CudaCopyProbe, ends_after_its_limit) {
  const auto gpus = std::make_shared<Gpus>(cuda.driver());
  Gpu gpu = kHost;
  ASSERT_TRUE(gpus->use(0, gpu).ok());
  CopyCosts costs;
  ASSERT_TRUE(measure_copies(*gpus, gpu, SlowClock(kMicrosecond), costs).ok());
  EXPECT_EQ(copies(), 24) << "all runs of a fast machine";
  ASSERT_TRUE(measure_copies(*gpus, gpu, SlowClock(kProbeLimit), costs).ok());
  EXPECT_EQ(copies(), 28) << "each size and direction once";
  ASSERT_TRUE(measure_copies(*gpus, gpu, SlowClock(kProbeLimit / 8), costs).ok());
  EXPECT_LE(copies(), 36);
}

TEST_F(CudaCopyProbe, leaves_nothing_behind_if_a_call_is_refused) {
  const auto gpus = std::make_shared<Gpus>(cuda.driver());
  Gpu gpu = kHost;
  ASSERT_TRUE(gpus->use(0, gpu).ok());
  CopyCosts costs;
  for (const char* call : {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuStreamSynchronize"}) {
    cuda.fails[call] = kOutOfMemory;
    EXPECT_FALSE(measure_copies(*gpus, gpu, SlowClock(1), costs).ok()) << call;
    cuda.fails.clear();
  }
  EXPECT_FALSE(costs.is_known());
}

TEST_F(CudaCopyProbe, measures_a_gpu_once_when_it_is_first_used) {
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(std::size_t{32} << 20, pool).ok());
  for (const bool measures : {false, true}) {
    const int before = copies();
    CudaMemory memory(cuda.driver(), CudaOptions{.pool = *pool,
                                                 .log = Log(LogLevel::warning, 0),
                                                 .wake = [] {},
                                                 .measures_copies = measures});
    EXPECT_EQ(copies(), before) << "no GPU is used yet";
    Gpu gpu = kHost;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(memory.find(cuda.place(8), gpu).ok());
      ASSERT_TRUE(memory.thread().finish());
    }
    EXPECT_EQ(copies() > before, measures);
    EXPECT_LE(copies(), before + 24) << "once";
    if (!measures) {
      EXPECT_FALSE(memory.work().copy_costs().is_known());
    }
  }
}

TEST_F(CudaCopyProbe, says_once_that_a_measurement_is_refused) {
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(std::size_t{32} << 20, pool).ok());
  cuda.fails["cuStreamCreate"] = kOutOfMemory;
  testing::internal::CaptureStderr();
  {
    CudaMemory memory(cuda.driver(), CudaOptions{.pool = *pool,
                                                 .log = Log(LogLevel::warning, 0),
                                                 .wake = [] {},
                                                 .measures_copies = true});
    Gpu gpu = kHost;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(memory.find(cuda.place(8), gpu).ok());
      ASSERT_TRUE(memory.thread().finish());
    }
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, ::testing::HasSubstr("segments of the usual length, maybe more slowly: "
                                         "cuStreamCreate failed"));
  EXPECT_EQ(said.find("the costs of copies"), said.rfind("the costs of copies"));
}

}  // namespace
}  // namespace rdmacoll::cuda_test
