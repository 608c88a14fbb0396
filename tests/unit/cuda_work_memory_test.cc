// The growth of work memory on GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cuda/cuda_memory.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The arrays that need more go through host memory, which is slower.
TEST(CudaWorkMemory, that_does_not_grow_is_said_once) {
  ScriptedCuda cuda;
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(std::size_t{32} << 20, pool).ok());
  CudaMemory memory(cuda.driver(), CudaOptions{"", *pool, Log(LogLevel::warning, 0), [] {}});
  Gpu gpu = kHost;
  ASSERT_TRUE(memory.find(cuda.place(8), gpu).ok());
  GpuWork& work = memory.work();
  for (int i = 0; i < 3; ++i) {
    (void)work.prepare(gpu, 1 << 20);
    memory.thread().finish();
  }
  ASSERT_EQ(work.prepare(gpu, 1 << 20), 1);
  cuda.fails["cuMemAlloc"] = kOutOfMemory;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(work.prepare(gpu, 100 << 20), 1);
    memory.thread().finish();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      said, AllOf(HasSubstr("Work memory on the GPU cuda:0"), HasSubstr("stays at 64 MiB"),
                  HasSubstr("cuMemAlloc of 100 MiB failed"), HasSubstr("Free memory of the GPU")));
  EXPECT_EQ(said.find("stays at"), said.rfind("stays at"));
}

}  // namespace
}  // namespace rdmacoll::cuda_test
