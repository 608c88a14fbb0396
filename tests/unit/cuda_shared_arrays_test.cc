// Memory of GPUs for arrays that peers read in place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cuda/shared_arrays.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

class CudaSharedArrays : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(gpus->use(0, gpu).ok()); }
  void TearDown() override {
    arrays.reset();
    EXPECT_TRUE(thread.finish());
    EXPECT_TRUE(cuda.misuse.empty()) << cuda.misuse.front();
  }
  std::shared_ptr<std::byte[]> allocate(uint64_t bytes) {
    return arrays->allocate(gpu, bytes, thread);
  }
  const GpuSlab* share(const std::shared_ptr<std::byte[]>& array, uint64_t bytes) {
    return arrays->allocation_of({array.get(), bytes, gpu}, true);
  }

  ScriptedCuda cuda{2};
  std::shared_ptr<Gpus> gpus = std::make_shared<Gpus>(cuda.driver());
  std::shared_ptr<SharedArrays> arrays =
      std::make_shared<SharedArrays>(gpus, Log(LogLevel::warning, 0));
  DriverThread thread;
  Gpu gpu = kHost;
};

TEST_F(CudaSharedArrays, lie_in_one_allocation_which_peers_open_as_a_whole) {
  std::vector<std::shared_ptr<std::byte[]>> all;
  for (uint64_t bytes = 1; bytes < 100'000; bytes += 777) all.push_back(allocate(bytes));
  EXPECT_EQ(cuda.count("cuMemAlloc"), 1);
  EXPECT_EQ(cuda.count("cuIpcGetMemHandle"), 1);
  const GpuSlab* const slab = share(all.front(), 1);
  ASSERT_NE(slab, nullptr);
  for (const auto& one : all) {
    EXPECT_EQ(share(one, 1), slab);
    EXPECT_EQ(reinterpret_cast<uint64_t>(one.get()) % 512, slab->begin % 512);
  }
}

TEST_F(CudaSharedArrays, give_their_memory_to_the_next_one) {
  for (int step = 0; step < 100; ++step) {
    const auto first = allocate(20 * kMiB), second = allocate(11 * kMiB);
    ASSERT_NE(second, nullptr);
    EXPECT_NE(first.get(), second.get());
  }
  EXPECT_EQ(cuda.count("cuMemAlloc"), 1);
  EXPECT_EQ(cuda.count("cuMemFree"), 0);
}

// Views join pieces that follow each other in memory, and a peer finds each piece in one
// allocation.
TEST_F(CudaSharedArrays, never_reach_the_end_of_their_allocation) {
  for (const uint64_t bytes : {32 * kMiB - 512, 32 * kMiB, 34 * kMiB - 1, 64 * kMiB}) {
    const auto array = allocate(bytes);
    ASSERT_NE(array, nullptr);
    const GpuSlab* const slab = share(array, bytes);
    ASSERT_NE(slab, nullptr);
    EXPECT_LT(reinterpret_cast<uint64_t>(array.get()) + bytes, slab->begin + slab->bytes);
  }
}

TEST_F(CudaSharedArrays, are_told_from_other_memory) {
  const auto array = allocate(1000);
  const GpuSlab* const slab = share(array, 1000);
  ASSERT_NE(slab, nullptr);
  auto* const begin = reinterpret_cast<std::byte*>(slab->begin);
  EXPECT_EQ(arrays->allocation_of({begin, slab->bytes, gpu}, true), slab);
  EXPECT_EQ(arrays->allocation_of({begin, slab->bytes + 1, gpu}, true), nullptr);
  EXPECT_EQ(arrays->allocation_of({begin - 1, 2, gpu}, true), nullptr);
  EXPECT_EQ(arrays->allocation_of({begin, 1, static_cast<Gpu>(gpu + 1)}, true), nullptr);
}

TEST_F(CudaSharedArrays, stay_while_a_peer_may_have_them_open) {
  auto open = allocate(1000);
  ASSERT_NE(share(open, 1000), nullptr);
  auto idle = allocate(40 * kMiB), used = allocate(50 * kMiB);
  ASSERT_NE(arrays->allocation_of({idle.get(), 1, gpu}, false), nullptr);  // not for peers
  EXPECT_FALSE(arrays->keeps(gpu));
  open.reset();
  EXPECT_FALSE(arrays->keeps(gpu));
  idle.reset();
  EXPECT_TRUE(arrays->keeps(gpu));
  arrays->trim(gpu);
  EXPECT_EQ(cuda.count("cuMemFree"), 1);
  arrays.reset();
  EXPECT_EQ(cuda.count("cuMemFree"), 1) << "an array keeps all";
  used.reset();
  EXPECT_EQ(cuda.count("cuMemFree"), 3);
}

// Callers get other memory, which is copied for peers.
TEST_F(CudaSharedArrays, that_have_no_place_are_said_once) {
  testing::internal::CaptureStderr();
  cuda.fails["cuMemAlloc"] = kOutOfMemory;
  for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(allocate(1000), nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("Some arrays that rdmacoll makes on the GPU cuda:0"),
                          HasSubstr("copied before peers read them: cuMemAlloc of 32 MiB"),
                          HasSubstr("Free memory of the GPU")));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(CudaSharedArrays, of_many_allocations_end_with_a_sentence) {
  std::vector<std::shared_ptr<std::byte[]>> all;
  testing::internal::CaptureStderr();
  for (int turn = 0; turn < 515; ++turn) all.push_back(allocate(32 * kMiB));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(all[511], nullptr);
  EXPECT_EQ(all[512], nullptr);
  EXPECT_THAT(said, HasSubstr("512 allocations for arrays exist"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(CudaSharedArrays, are_refused_where_peers_could_not_open_them) {
  cuda.has_ipc = false;
  for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(allocate(1000), nullptr);
  EXPECT_TRUE(thread.finish());
  EXPECT_EQ(cuda.count("cuMemAlloc"), 1) << "memory is not tried again and again";
  EXPECT_EQ(cuda.count("cuMemFree"), 1);
}

}  // namespace
}  // namespace rdmacoll::cuda_test
