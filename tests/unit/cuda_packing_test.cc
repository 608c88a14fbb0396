// Jobs with many small pieces in memory of GPUs.
#include <algorithm>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <utility>

#include "unit/cuda_compute_fixture.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::HasSubstr;
using CudaPacking = CudaCompute;

// Pieces of `bytes` bytes, one after the other but for a gap.
std::vector<Piece> cut(std::byte* data, std::size_t count, std::size_t bytes, Gpu gpu) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < count; ++i) pieces.push_back({data + i * (bytes + 3), bytes, gpu});
  return pieces;
}

TEST_F(CudaPacking, packs_and_unpacks_many_small_pieces_by_one_kernel) {
  constexpr std::size_t kBytes = 333;
  load_copies(first);
  std::mt19937_64 random(1);
  for (const std::size_t count : {9u, 200u}) {  // the rows of the second need a table
    const std::size_t span = count * (kBytes + 3);
    std::byte* const device = cuda.place(span);
    std::byte* const result = cuda.place(span);
    std::byte* const host = pool->allocate(count * kBytes);
    for (std::size_t i = 0; i < span; ++i) device[i] = static_cast<std::byte>(random());
    const int before = cuda.count("cuLaunchKernel");
    copy({{host, count * kBytes}}, cut(device, count, kBytes, first), 1);
    EXPECT_THAT(poll().cookies, IsEmpty());
    EXPECT_THAT(finish().cookies, ElementsAre(1));
    copy(cut(result, count, kBytes, first), {{host, count * kBytes}}, 2);
    EXPECT_THAT(finish().cookies, ElementsAre(2));
    EXPECT_EQ(cuda.count("cuLaunchKernel"), before + 2);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = i * (kBytes + 3);
      ASSERT_EQ(std::memcmp(result + at, device + at, kBytes), 0) << "piece " << i;
    }
  }
  EXPECT_EQ(cuda.count("cuMemcpyDtoHAsync") + cuda.count("cuMemcpyHtoDAsync"), 0);
  EXPECT_EQ(compute->gpu_counters().kernel_launches, 4u);
  EXPECT_EQ(compute->gpu_counters().bytes_staged, 2 * (9 + 200) * kBytes);
}

TEST_F(CudaPacking, gives_large_tables_back_to_the_pool) {
  constexpr std::size_t kCount = 2000, kBytes = 8;
  load_copies(first);
  std::byte* const device = cuda.place(kCount * (kBytes + 3));
  std::byte* const host = pool->allocate(kCount * kBytes);
  const uint64_t before = pool->used();
  for (int i = 0; i < 3; ++i) {
    copy({{host, kCount * kBytes}}, cut(device, kCount, kBytes, first));
    EXPECT_GT(pool->used(), before);
    EXPECT_EQ(finish().cookies.size(), 1u);
    EXPECT_EQ(pool->used(), before);
  }
  EXPECT_EQ(cuda.count("cuLaunchKernel"), 3);
}

// The driver may compile for long, and wait for kernels that run.
TEST_F(CudaPacking, copies_small_pieces_while_the_kernel_is_loaded) {
  std::byte* const device = cuda.place(20 * 11);
  std::byte* const host = pool->allocate(20 * 8);
  std::promise<void> has_begun, may_end;
  cuda.while_loading = [&, is_first = true]() mutable {
    if (!std::exchange(is_first, false)) return;
    has_begun.set_value();
    may_end.get_future().wait();
  };
  for (int turn = 0; turn < 3; ++turn) {
    device[11] = static_cast<std::byte>(turn + 7);
    copy({{host, 20 * 8}}, cut(device, 20, 8, first));
    EXPECT_EQ(finish().cookies.size(), 1u);
    EXPECT_EQ(host[8], static_cast<std::byte>(turn + 7));
  }
  has_begun.get_future().wait();
  EXPECT_EQ(cuda.count("cuLaunchKernel"), 0);
  may_end.set_value();
  thread->finish();
  copy({{host, 20 * 8}}, cut(device, 20, 8, first));
  EXPECT_EQ(finish().cookies.size(), 1u);
  EXPECT_EQ(cuda.count("cuLaunchKernel"), 1);
  EXPECT_EQ(cuda.count("cuModuleLoadData"), 1);
}

TEST_F(CudaPacking, copies_small_pieces_that_no_kernel_can) {
  std::byte* const device = cuda.place(20 * 11);
  std::byte* const host = pool->allocate(20 * 8);
  std::byte foreign[20 * 8];
  device[11] = std::byte{7};
  copy({{foreign, 20 * 8}}, cut(device, 20, 8, first), 1);  // not pinned
  std::vector<Piece> of_both = cut(device, 20, 8, first);
  of_both[0] = {cuda.place(8, 1), 8, second};
  copy({{host, 20 * 8}}, of_both, 2);
  EXPECT_EQ(finish().cookies.size(), 2u);
  EXPECT_EQ(foreign[8], std::byte{7});
  EXPECT_EQ(host[8], std::byte{7});
  EXPECT_EQ(cuda.count("cuLaunchKernel"), 0);
}

// Neither is an error, and both are said once.
TEST_F(CudaPacking, says_why_small_pieces_are_copied_without_the_kernel) {
  std::byte* const device = cuda.place(20 * 11);
  std::byte* const host = pool->allocate(20 * 8);
  copy({{host, 20 * 8}}, cut(device, 20, 8, first));
  finish();
  thread->finish();  // the kernel is loaded
  testing::internal::CaptureStderr();
  cuda.fails["cuMemHostGetDevicePointer"] = kInvalidValue;
  std::byte* const elsewhere = pool->allocate(20 << 20) + (16 << 20);  // pinned by itself
  for (int i = 0; i < 3; ++i) {
    copy({{elsewhere, 20 * 8}}, cut(device, 20, 8, first));
    EXPECT_EQ(finish().cookies.size(), 1u);
  }
  cuda.fails = {{"cuLaunchKernel", kOutOfMemory}};
  for (int i = 0; i < 3; ++i) {
    device[11] = static_cast<std::byte>(i + 5);
    copy({{host, 20 * 8}}, cut(device, 20, 8, first));
    EXPECT_EQ(finish().cookies.size(), 1u);
    EXPECT_EQ(host[8], static_cast<std::byte>(i + 5));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* what :
       {"finding pinned memory of the host from the GPU cuda:0", "cuLaunchKernel of copy_"}) {
    EXPECT_THAT(said, HasSubstr(what));
    EXPECT_EQ(said.find(what), said.rfind(what)) << said;
  }
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
}

TEST_F(CudaPacking, copies_small_pieces_if_the_driver_refuses_the_kernel) {
  std::byte* const device = cuda.place(20 * 11);
  std::byte* const host = pool->allocate(20 * 8);
  cuda.fails["cuModuleLoadData"] = kUnsupportedPtxVersion;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    device[11] = static_cast<std::byte>(i + 5);
    copy({{host, 20 * 8}}, cut(device, 20, 8, first));
    thread->finish();
    EXPECT_EQ(finish().cookies.size(), 1u);
    EXPECT_EQ(host[8], static_cast<std::byte>(i + 5));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("loading the kernel copy_"));
  EXPECT_EQ(said.find("loading"), said.rfind("loading"));
  EXPECT_EQ(cuda.count("cuModuleLoadData"), 1);
}

}  // namespace
}  // namespace rdmacoll::cuda_test
