// Memory of GPUs for results, and all parts together.
#include "cuda/cuda_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "compute/inline.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A load that waits longer is a fault.
constexpr std::chrono::seconds kLimit{5};

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

// The driver waits for kernels before it frees memory, and a kernel may wait for this caller.
TEST_F(CudaMemoryOfGpus, that_is_kept_goes_back_while_no_call_waits_for_long) {
  const Gpu gpu = use(0);
  memory->allocate(gpu, 1 << 20);
  std::promise<void> may_end;
  cuda.while_freeing = [end = may_end.get_future().share()] { end.wait_for(kLimit); };
  cuda.fails["cuMemAlloc"] = kOutOfMemory;
  testing::internal::CaptureStderr();
  EXPECT_EQ(memory->allocate(gpu, 4 << 20), nullptr);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cuMemAlloc of 4 MiB"));
  EXPECT_EQ(cuda.count("cuMemFree"), 0);
  may_end.set_value();
  memory->thread().finish();
  EXPECT_EQ(cuda.count("cuMemFree"), 1);
}

TEST_F(CudaMemoryOfGpus, makes_slabs_while_no_call_waits) {
  const Gpu gpu = use(0);
  GpuWork& work = memory->work();
  EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);
  memory->thread().finish();
  std::promise<void> may_end;
  cuda.while_freeing = [end = may_end.get_future().share()] { end.wait_for(kLimit); };
  cuda.fails["cuIpcGetMemHandle"] = kNotSupported;
  EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);  // the slab cannot be shared, and is freed
  EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);
  EXPECT_EQ(work.version(), 1u);
  EXPECT_EQ(cuda.count("cuMemFree"), 0);
  may_end.set_value();
  memory->thread().finish();
  EXPECT_EQ(work.version(), 2u);
  EXPECT_EQ(cuda.count("cuMemFree"), 1);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("go through host memory within a node: cuIpcGetMemHandle"));
  EXPECT_EQ(said.find("cuIpcGetMemHandle"), said.rfind("cuIpcGetMemHandle"));
}

TEST_F(CudaMemoryOfGpus, of_a_gpu_without_cuda_ipc_is_not_shared_and_named) {
  const Gpu gpu = use(0);
  GpuWork& work = memory->work();
  cuda.has_ipc = false;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);
    memory->thread().finish();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("is not capable of CUDA IPC (IS_LEGACY_CUDA_IPC_CAPABLE is 0)"));
  EXPECT_EQ(said.find("CUDA IPC"), said.rfind("CUDA IPC (")) << "said once: " << said;
  EXPECT_EQ(cuda.count("cuIpcGetMemHandle"), 0);
  EXPECT_EQ(cuda.count("cuMemFree"), 1);
}

TEST_F(CudaMemoryOfGpus, is_copied_after_the_work_of_a_stream_and_on_another_one) {
  const Gpu gpu = use(0);
  std::vector<std::byte> host(64, std::byte{7});
  std::byte* const array = cuda.place(64);
  const HostCopy copy{array, host.data(), host.size()};
  const uint64_t stream = reinterpret_cast<uint64_t>(cuda.stream_of_caller());
  const int streams = cuda.live_streams;
  for (const CopyTo to : {CopyTo::gpu, CopyTo::host}) {
    const Status status = memory->copy(std::span(&copy, 1), to, gpu, stream);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(cuda.live_streams, streams + 1) << "one stream serves again";
  EXPECT_EQ(array[63], std::byte{7});
  EXPECT_TRUE(memory->copy({}, CopyTo::host, gpu, stream).ok());
  EXPECT_THAT(memory->copy(std::span(&copy, 1), CopyTo::host, gpu, 0).message(),
              HasSubstr("stream"));
  cuda.fails["cuMemcpyDtoHAsync"] = kInvalidValue;
  EXPECT_THAT(memory->copy(std::span(&copy, 1), CopyTo::host, gpu, stream).message(),
              HasSubstr("a copy of 64 B"));
}

// A kernel of the program may run for ever.
TEST_F(CudaMemoryOfGpus, ends_though_the_driver_does_not_return) {
  const Gpu gpu = use(0);
  memory->thread().finish();
  memory->allocate(gpu, 100);
  std::promise<void> may_end, has_gone;
  cuda.while_freeing = [end = may_end.get_future().share()] { end.wait_for(kLimit); };
  auto end_of_pool = std::shared_ptr<int>(new int(), [&has_gone](int* own) {
    delete own;
    has_gone.set_value();
  });
  testing::internal::CaptureStderr();
  CudaMemory::end(std::move(memory), std::move(end_of_pool), 20 * kMillisecond);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("kernels of this program still do"), HasSubstr("before shutdown()")));
  EXPECT_EQ(cuda.contexts[0].retained, 1);
  may_end.set_value();
  has_gone.get_future().wait();  // the pool goes last
}

// The driver waits for kernels that run while it loads others. So no call waits for the load.
TEST_F(CudaMemoryOfGpus, has_its_kernels_loaded_while_no_call_waits) {
  std::promise<void> may_end;
  cuda.while_loading = [end = may_end.get_future().share()] { end.wait_for(kLimit); };
  const Gpu first = use(0);
  Gpu second = kHost;
  ASSERT_TRUE(memory->use(1, second).ok());
  std::shared_ptr<StreamOrder> order;
  for (const Gpu gpu : {first, second, second}) {
    ASSERT_TRUE(memory->order(kLegacyStream, gpu, order).ok());
  }
  EXPECT_EQ(cuda.count("cuModuleLoadData"), 0);
  may_end.set_value();
  memory->thread().finish();
  EXPECT_EQ(cuda.count("cuModuleLoadData"), 4);
}

// The first call begins to prepare the GPU. It has no slab before it is ready.
TEST_F(CudaMemoryOfGpus, is_ready_for_sums_after_all_kernels_are_loaded) {
  const Gpu gpu = use(0);
  std::promise<void> may_end;
  memory->thread().finish();
  cuda.while_loading = [end = may_end.get_future().share()] { end.wait_for(kLimit); };
  GpuWork& work = memory->work();
  EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);
  EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);
  EXPECT_EQ(work.version(), 0u);
  GpuSlab slab;
  std::byte* mapped = nullptr;
  Gpu opened = kHost;
  EXPECT_TRUE(work.open(slab, mapped, opened).is_busy());
  EXPECT_EQ(cuda.count("cuMemAlloc"), 0);
  may_end.set_value();
  memory->thread().finish();
  EXPECT_EQ(work.version(), 1u);
  EXPECT_EQ(cuda.count("cuModuleLoadData"), static_cast<int>(kernels().size()));
  EXPECT_EQ(cuda.count("cuMemAlloc"), 1);  // for operands from elsewhere
}

TEST_F(CudaMemoryOfGpus, says_why_a_gpu_does_not_become_ready) {
  const Gpu gpu = use(0);
  memory->thread().finish();
  cuda.fails["cuMemAlloc"] = kOutOfMemory;
  GpuWork& work = memory->work();
  testing::internal::CaptureStderr();  // the first call may already see the end
  EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);
  memory->thread().finish();
  EXPECT_EQ(work.version(), 1u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(work.prepare(gpu, 1 << 20), 0);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("go through host memory within a node: cuMemAlloc of 16 MiB on "
                                    "the GPU cuda:0"),
                          HasSubstr("Free memory of the GPU")));
  EXPECT_EQ(said.find("cuMemAlloc"), said.rfind("cuMemAlloc"));
  GpuSlab slab;
  std::byte* mapped = nullptr;
  Gpu opened = kHost;
  EXPECT_THAT(work.open(slab, mapped, opened).message(), HasSubstr("cuMemAlloc of 16 MiB"));
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

TEST_F(CudaMemoryOfGpus, that_is_retired_on_a_destroyed_stream_waits_for_all_work_of_the_gpu) {
  const Gpu gpu = use(0);
  auto result = memory->allocate(gpu, 100);
  std::byte* const address = result.get();
  cuda.fails["cuStreamGetCtx"] = kInvalidHandle;
  ASSERT_TRUE(memory->thread().finish());
  const int frees = cuda.count("cuMemFreeHost");
  memory->retire(std::move(result), 0x1234);
  EXPECT_TRUE(memory->thread().finish());
  EXPECT_EQ(cuda.count("cuMemFreeHost"), frees + 1) << "the driver waits for kernels then";
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

TEST(CudaDriverThread, runs_tasks_in_their_order) {
  DriverThread thread;
  std::vector<int> seen;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(thread.post([&seen, i] { seen.push_back(i); }).ok());
  thread.finish();
  ASSERT_EQ(seen.size(), 100u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_TRUE(thread.stop());
}

// A kernel of the program may run for ever.
TEST(CudaDriverThread, is_left_alone_if_the_driver_does_not_return) {
  std::promise<void> has_begun, may_end, has_ended;
  auto end = may_end.get_future().share();
  auto owned = std::make_shared<int>(1);
  std::weak_ptr<int> seen = owned;
  {
    DriverThread thread;
    ASSERT_TRUE(thread
                    .post([&has_begun, &has_ended, end, owned = std::move(owned)] {
                      has_begun.set_value();
                      end.wait();
                      has_ended.set_value();
                    })
                    .ok());
    ASSERT_TRUE(thread.post([] { ADD_FAILURE() << "a task of a thread that was stopped"; }).ok());
    has_begun.get_future().wait();
    EXPECT_FALSE(thread.stop(20 * kMillisecond));
  }
  EXPECT_FALSE(seen.expired());
  may_end.set_value();
  has_ended.get_future().wait();
  for (int i = 0; i < 1000 && !seen.expired(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(seen.expired());
}

// The end of a later task may tell a peer that the task before it has ended.
TEST(CudaDriverThread, drops_tasks_after_the_one_that_runs) {
  std::promise<void> has_begun, may_end, is_dropped;
  auto end = may_end.get_future().share();
  std::future<void> dropped = is_dropped.get_future();
  {
    DriverThread thread;
    ASSERT_TRUE(thread
                    .post([&has_begun, end] {
                      has_begun.set_value();
                      end.wait();
                    })
                    .ok());
    std::shared_ptr<int> owned(new int(1), [&is_dropped](const int* number) {
      delete number;
      is_dropped.set_value();
    });
    ASSERT_TRUE(thread.post([owned = std::move(owned)] {}).ok());
    has_begun.get_future().wait();
    EXPECT_FALSE(thread.stop(20 * kMillisecond));
  }
  EXPECT_EQ(dropped.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  may_end.set_value();
  EXPECT_EQ(dropped.wait_for(std::chrono::seconds(60)), std::future_status::ready);
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
