// The end of memory of GPUs if the system refuses a thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <memory>
#include <utility>

#include "cuda/cuda_memory.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Nothing waits for kernels then, since the wait would have no limit. The memory stays for ever.
TEST(CudaMemoryAtItsEnd, is_kept_if_no_thread_can_free_it) {
  ScriptedCuda cuda{1};  // nothing calls it after the end
  std::unique_ptr<MemoryPool> created;
  ASSERT_TRUE(MemoryPool::create(std::size_t{32} << 20, created).ok());
  const std::shared_ptr<MemoryPool> pool = std::move(created);
  auto memory = std::make_unique<CudaMemory>(
      cuda.driver(), CudaOptions{"", *pool, Log(LogLevel::warning, 0), [] {}});
  Gpu gpu = kHost;
  ASSERT_TRUE(memory->find(cuda.place(8, 0), gpu).ok());
  memory->thread().finish();
  memory->allocate(gpu, 100);
  cuda.while_freeing = [] { ADD_FAILURE() << "the caller frees memory"; };

  pthread_attr_t attributes, huge;
  ASSERT_EQ(::pthread_getattr_default_np(&attributes), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 46),
            0);  // no address space has it
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  testing::internal::CaptureStderr();
  CudaMemory::end(std::move(memory), pool);
  ASSERT_EQ(::pthread_setattr_default_np(&attributes), 0);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("cannot start the thread that frees memory of GPUs"),
                    HasSubstr("stays until the process ends")));
  EXPECT_EQ(cuda.contexts[0].retained, 1);
  EXPECT_EQ(pool.use_count(), 2);
}

}  // namespace
}  // namespace rdmacoll::cuda_test
