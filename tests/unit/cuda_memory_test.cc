// Memory of GPUs for results, and all parts together.
#include "cuda/cuda_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "compute/inline.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CudaMemoryOfGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MemoryPool::create(std::size_t{32} << 20, pool).ok());
    open();
    ScriptedCuda::current() = {&cuda.contexts[1]};  // the caller's
  }
  void TearDown() override {
    memory.reset();
    EXPECT_THAT(ScriptedCuda::current(), ElementsAre(&cuda.contexts[1]));
    EXPECT_THAT(cuda.misuse, IsEmpty());
    EXPECT_EQ(cuda.contexts[0].retained, 0);
    EXPECT_EQ(cuda.contexts[1].retained, 0);
  }
  void open() {
    memory = std::make_unique<CudaMemory>(cuda.driver(),
                                          CudaOptions{"", *pool, Log(LogLevel::warning, 0), [] {}});
  }
  Gpu use(int ordinal) {
    Gpu gpu = kHost;
    EXPECT_TRUE(memory->find(cuda.place(8, ordinal), gpu).ok());
    return gpu;
  }

  ScriptedCuda cuda{2};
  std::unique_ptr<MemoryPool> pool;
  std::unique_ptr<CudaMemory> memory;
};

TEST_F(CudaMemoryOfGpus, is_found_by_address) {
  std::byte host[8];
  Gpu gpu = 5;
  ASSERT_TRUE(memory->find(host, gpu).ok());
  EXPECT_EQ(gpu, kHost);
  EXPECT_EQ(use(1), 0);
  EXPECT_EQ(use(0), 1);
  EXPECT_EQ(use(1), 0);
}

TEST_F(CudaMemoryOfGpus, is_kept_for_the_next_result_of_its_size) {
  const Gpu gpu = use(0);
  std::byte* last = nullptr;
  for (int step = 0; step < 100; ++step) {
    const auto result = memory->allocate(gpu, 1000);
    const auto other = memory->allocate(gpu, 3 << 20);
    ASSERT_NE(result, nullptr);
    EXPECT_TRUE(step == 0 || result.get() == last);
    last = result.get();
  }
  EXPECT_EQ(cuda.count("cuMemAlloc"), 2);
  EXPECT_EQ(cuda.count("cuMemFree"), 0);
  EXPECT_NE(memory->allocate(gpu, 0), nullptr);
}

TEST_F(CudaMemoryOfGpus, that_is_lent_is_not_lent_again) {
  const Gpu first = use(0), second = use(1);
  const auto one = memory->allocate(first, 100);
  const auto two = memory->allocate(first, 100);
  const auto three = memory->allocate(second, 100);
  EXPECT_NE(one.get(), two.get());
  EXPECT_EQ(cuda.memory.at(reinterpret_cast<Address>(three.get())).ordinal, 1);
}

TEST_F(CudaMemoryOfGpus, outlives_the_engine_with_its_context) {
  const Gpu gpu = use(0);
  auto result = memory->allocate(gpu, 100);
  memory.reset();
  EXPECT_EQ(cuda.contexts[0].retained, 1);
  result.reset();
  EXPECT_EQ(cuda.contexts[0].retained, 0);
  EXPECT_EQ(cuda.count("cuMemFree"), 1);
}

TEST_F(CudaMemoryOfGpus, that_is_kept_goes_back_before_there_is_too_little) {
  const Gpu gpu = use(0);
  memory->allocate(gpu, 1 << 20);
  memory->allocate(gpu, 2 << 20);
  cuda.fails["cuMemAlloc"] = kOutOfMemory;
  testing::internal::CaptureStderr();
  EXPECT_EQ(memory->allocate(gpu, 4 << 20), nullptr);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("cuMemAlloc of 4 MiB on the GPU cuda:0"), HasSubstr("Free memory")));
  EXPECT_EQ(cuda.count("cuMemFree"), 2);
  cuda.fails.clear();
  EXPECT_NE(memory->allocate(gpu, 4 << 20), nullptr);
}

// On the thread of the program, since the driver may wait for kernels that run.
TEST_F(CudaMemoryOfGpus, has_its_kernels_before_the_engine_needs_them) {
  const Gpu first = use(0);
  EXPECT_EQ(cuda.count("cuModuleLoadData"), 2);
  Gpu second = kHost;
  ASSERT_TRUE(memory->use(1, second).ok());
  std::shared_ptr<StreamOrder> order;
  for (const Gpu gpu : {first, second, second}) {
    ASSERT_TRUE(memory->order(kLegacyStream, gpu, order).ok());
  }
  EXPECT_EQ(cuda.count("cuModuleLoadData"), 4);
}

TEST_F(CudaMemoryOfGpus, that_is_retired_is_given_to_the_next_owner_once_its_work_is_done) {
  const Gpu gpu = use(0);
  auto result = memory->allocate(gpu, 100);
  std::byte* const address = result.get();
  Stream& legacy = cuda.default_stream(kLegacyStream);
  legacy.is_capturing = true;  // as yet, nobody knows when its work will be done
  memory->retire(std::move(result), kLegacyStream);
  EXPECT_NE(memory->allocate(gpu, 100).get(), address);
  legacy.is_capturing = false;
  auto other = memory->allocate(gpu, 100);
  EXPECT_NE(other.get(), address);
  cuda.run();
  EXPECT_EQ(memory->allocate(gpu, 100).get(), address);
}

TEST_F(CudaMemoryOfGpus, leaves_nothing_behind_after_many_starts) {
  std::byte* const device = cuda.place(64);
  const SteadyClock clock;
  for (int i = 0; i < 1000; ++i) {
    memory.reset();
    open();
    Gpu gpu = kHost;
    ASSERT_TRUE(memory->find(device, gpu).ok());
    std::shared_ptr<StreamOrder> order;
    ASSERT_TRUE(memory->order(kLegacyStream, gpu, order).ok());
    EXPECT_TRUE(order->arm());
    const auto result = memory->allocate(gpu, 64);
    cuda.run();
    memory->close();
    order.reset();
    memory.reset();
    EXPECT_EQ(cuda.contexts[0].retained, 1);
  }
  EXPECT_EQ(cuda.contexts[0].retained, 0);
  EXPECT_EQ(cuda.live_events, 0);
  EXPECT_EQ(cuda.live_streams, 0);
  EXPECT_EQ(cuda.memory.size(), 1u);
}

TEST(CudaMemoryWithoutADriver, is_refused_with_the_cure) {
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(std::size_t{16} << 20, pool).ok());
  std::unique_ptr<CudaMemory> memory;
  const Status status =
      CudaMemory::open({"/nowhere/libcuda.so.1", *pool, Log::silent(0), [] {}}, memory);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_EQ(memory, nullptr);
}

}  // namespace
}  // namespace rdmacoll::cuda_test
