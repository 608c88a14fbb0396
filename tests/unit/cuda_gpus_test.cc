// The driver, the GPUs and the kinds of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "cuda/gpus.h"
#include "cuda/memory_kinds.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudaDriver, that_is_not_there_is_named_with_the_cure) {
  const Driver* driver = nullptr;
  const Status status = Driver::open("/nowhere/libcuda.so.1", driver);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("/nowhere/libcuda.so.1 cannot be used"),
                                      HasSubstr("RDMACOLL_CUDA_LIBRARY")));
  EXPECT_EQ(driver, nullptr);
}

TEST(CudaDriver, that_is_another_library_is_refused_by_the_first_missing_function) {
  const Driver* driver = nullptr;
  const Status status = Driver::open("libm.so.6", driver);
  EXPECT_THAT(status.message(), HasSubstr("it lacks the function cuInit of CUDA 11.0"));
}

TEST(CudaDriver, of_an_older_version_is_refused) {
  ScriptedCuda cuda;
  cuda.version = 10'020;
  Driver driver(cuda.functions());
  EXPECT_THAT(driver.initialize().message(),
              AllOf(HasSubstr("is for CUDA 10.2"), HasSubstr("needs CUDA 11.0 or later")));
}

TEST(CudaDriver, says_an_error_with_its_name_and_a_cure) {
  ScriptedCuda cuda;
  EXPECT_TRUE(cuda.driver().check(kSuccess, "cuMemAlloc").ok());
  EXPECT_EQ(cuda.driver().check(kOutOfMemory, "cuMemAlloc of 4 MiB").message(),
            "cuMemAlloc of 4 MiB failed: a sentence of the driver (CUDA_ERROR_OUT_OF_MEMORY). Free "
            "memory of the GPU, or use smaller arrays.");
  EXPECT_TRUE(is_sticky(kIllegalAddress));
  EXPECT_FALSE(is_sticky(kOutOfMemory));
}

TEST(CudaDriver, is_refused_in_a_forked_child) {
  ScriptedCuda cuda;
  EXPECT_TRUE(cuda.driver().usable().ok());
  const pid_t child = fork();
  if (child == 0) {
    Gpus gpus(cuda.driver());
    Gpu gpu = kHost;
    const Status status = gpus.use(0, gpu);
    const bool is_refused = status.code() == Code::uninitialized && gpus.size() == 0 &&
                            status.message().find("\"spawn\"") != std::string::npos;
    _exit(is_refused ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(CudaGpus, have_a_context_only_after_their_first_use) {
  ScriptedCuda cuda(3);
  {
    Gpus gpus(cuda.driver());
    Gpu gpu = kHost;
    int ordinal = -1;
    ASSERT_TRUE(gpus.find("GPU-12121212-1212-1212-1212-121212121212", ordinal).ok());
    EXPECT_EQ(ordinal, 2);
    EXPECT_EQ(cuda.count("cuDevicePrimaryCtxRetain"), 0);
    ASSERT_TRUE(gpus.use(ordinal, gpu).ok());
    EXPECT_EQ(gpu, 0);
    ASSERT_TRUE(gpus.use(0, gpu).ok());
    EXPECT_EQ(gpu, 1);
    ASSERT_TRUE(gpus.use(2, gpu).ok());
    EXPECT_EQ(gpu, 0);
    EXPECT_EQ(cuda.contexts[0].retained, 1);
    EXPECT_EQ(cuda.contexts[1].retained, 0);
    EXPECT_EQ(cuda.contexts[2].retained, 1);
    EXPECT_EQ(gpus.facts(0).capability, 37);
    EXPECT_EQ(gpus.facts(0).pci, "0000:02:00.0");
    EXPECT_EQ(gpus.facts(0).text(),
              "the GPU cuda:2 (Tesla K80, GPU-12121212-1212-1212-1212-121212121212)");
  }
  for (const Context& context : cuda.contexts) EXPECT_EQ(context.retained, 0);
}

TEST(CudaGpus, that_are_parts_of_a_gpu_have_uuids_of_their_own) {
  ScriptedCuda cuda(2);
  cuda.devices[0].part = 0x33;
  Gpus gpus(cuda.driver());
  int ordinal = -1;
  ASSERT_TRUE(gpus.find("MIG-33333333-3333-3333-3333-333333333333", ordinal).ok());
  EXPECT_EQ(ordinal, 0);
  const Status status = gpus.find("GPU-10101010-1010-1010-1010-101010101010", ordinal);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("MIG-33333333"), HasSubstr("GPU-11111111"),
                                      HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(CudaGpus, in_use_by_another_process_alone_are_named) {
  ScriptedCuda cuda(2);
  cuda.devices[0].compute_mode = kComputeModeExclusiveProcess;
  cuda.devices[1].compute_mode = kComputeModeProhibited;
  Gpus gpus(cuda.driver());
  Gpu gpu = kHost;
  cuda.fails["cuDevicePrimaryCtxRetain"] = kDeviceUnavailable;
  EXPECT_THAT(gpus.use(0, gpu).message(),
              AllOf(HasSubstr("\"exclusive process\""), HasSubstr("nvidia-smi -i GPU-10101010")));
  cuda.fails.clear();
  EXPECT_THAT(gpus.use(1, gpu).message(), HasSubstr("\"prohibited\""));
  EXPECT_EQ(gpus.size(), 0);
  EXPECT_TRUE(gpus.use(0, gpu).ok());
}

TEST(CudaGpus, are_used_once_by_many_threads) {
  ScriptedCuda cuda(4);
  Gpus gpus(cuda.driver());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&gpus, i] {
      Gpu gpu = kHost;
      EXPECT_TRUE(gpus.use(i % 4, gpu).ok());
      EXPECT_EQ(gpus.facts(gpu).ordinal, i % 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(gpus.size(), 4);
  for (const Context& context : cuda.contexts) EXPECT_EQ(context.retained, 1);
}

TEST(CudaContext, leaves_the_caller_s_context_current) {
  ScriptedCuda cuda(2);
  Gpus gpus(cuda.driver());
  Gpu gpu = kHost;
  ASSERT_TRUE(gpus.use(1, gpu).ok());
  ScriptedCuda::current() = {&cuda.contexts[0]};
  {
    const ScopedContext scope(gpus, gpu);
    EXPECT_TRUE(scope.status().ok());
    EXPECT_TRUE(cuda.is_current(&cuda.contexts[1]));
  }
  EXPECT_TRUE(cuda.is_current(&cuda.contexts[0]));
  cuda.fails["cuCtxPushCurrent"] = kContextIsDestroyed;
  {
    const ScopedContext scope(gpus, gpu);
    EXPECT_FALSE(scope.status().ok());
  }
  EXPECT_TRUE(cuda.is_current(&cuda.contexts[0]));
}

TEST(CudaMemoryKinds, are_found_by_address_and_make_only_their_gpu_a_used_one) {
  ScriptedCuda cuda(2);
  Gpus gpus(cuda.driver());
  MemoryKinds kinds(gpus, Log::silent(0));
  std::byte host[64];
  PointerFacts facts;
  ASSERT_TRUE(kinds.look(host, facts).ok());
  EXPECT_EQ(facts.kind, MemoryKind::host);
  ASSERT_TRUE(kinds.look(cuda.place(64, 0, MemoryType::host), facts).ok());
  EXPECT_EQ(facts.kind, MemoryKind::pinned);
  ASSERT_TRUE(kinds.look(cuda.place(64, 0, MemoryType::unified, true), facts).ok());
  EXPECT_EQ(facts.kind, MemoryKind::managed);
  EXPECT_EQ(facts.gpu, kHost);
  EXPECT_EQ(gpus.size(), 0);
  std::byte* const device = cuda.place(256, 1);
  ASSERT_TRUE(kinds.look(device + 100, facts).ok());
  EXPECT_EQ(facts.kind, MemoryKind::device);
  EXPECT_EQ(gpus.facts(facts.gpu).ordinal, 1);
  EXPECT_EQ(facts.base, reinterpret_cast<Address>(device));
  EXPECT_EQ(facts.bytes, 256u);
  EXPECT_EQ(facts.buffer_id, cuda.memory.at(facts.base).id);
  EXPECT_EQ(cuda.contexts[0].retained, 0);
}

TEST(CudaMemoryKinds, of_managed_memory_are_noted_once) {
  ScriptedCuda cuda;
  Gpus gpus(cuda.driver());
  MemoryKinds kinds(gpus, Log(LogLevel::warning, 0));
  std::byte* const managed = cuda.place(64, 0, MemoryType::device, true);
  PointerFacts facts;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(kinds.look(managed, facts).ok());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(facts.gpu, kHost);
  EXPECT_EQ(said.find("cudaMallocManaged"), said.rfind("cudaMallocManaged"));
  EXPECT_THAT(said, HasSubstr("managed memory"));
}

// The processor may not touch it while kernels run.
TEST(CudaMemoryKinds, of_managed_memory_of_an_old_gpu_are_those_of_the_gpu) {
  ScriptedCuda cuda(2);
  cuda.devices[1].shares_managed_memory = false;
  Gpus gpus(cuda.driver());
  MemoryKinds kinds(gpus, Log(LogLevel::warning, 0));
  std::byte* const managed = cuda.place(64, 1, MemoryType::unified, true);
  PointerFacts facts;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(kinds.look(managed + 8, facts).ok());
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(facts.kind, MemoryKind::device);
  EXPECT_EQ(gpus.facts(facts.gpu).ordinal, 1);
  EXPECT_EQ(facts.base, reinterpret_cast<Address>(managed));
  EXPECT_THAT(said, HasSubstr("cannot touch on this GPU while kernels run"));
  EXPECT_EQ(said.find("managed memory"), said.rfind("managed memory"));
}

TEST(CudaMemoryKinds, pass_on_an_error_of_the_driver) {
  ScriptedCuda cuda;
  Gpus gpus(cuda.driver());
  MemoryKinds kinds(gpus, Log::silent(0));
  cuda.fails["cuPointerGetAttributes"] = kIllegalAddress;
  PointerFacts facts;
  EXPECT_THAT(kinds.look(cuda.place(64), facts).message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

}  // namespace
}  // namespace rdmacoll::cuda_test
