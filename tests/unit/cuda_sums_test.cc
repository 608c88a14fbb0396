// Sums of operands that lie on a GPU and elsewhere.
#include <cstring>
#include <random>

#include "unit/cuda_compute_fixture.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using CudaSums = CudaCompute;

std::vector<int32_t> random_values(std::size_t count) {
  static std::mt19937 random(3);
  std::vector<int32_t> values(count);
  for (int32_t& value : values) value = static_cast<int32_t>(random());
  return values;
}

// The operands take several times the memory that a GPU has for them.
TEST_F(CudaSums, bring_operands_from_elsewhere_part_by_part) {
  prepare_sums(first);
  constexpr std::size_t kCount = 3 * GpuSums::kScratchBytes / sizeof(int32_t) / 2 + 1001;
  constexpr std::size_t kBytes = kCount * sizeof(int32_t);
  std::vector<int32_t> on_host = random_values(kCount), other = random_values(kCount);
  const std::vector<int32_t> on_gpu = random_values(kCount);
  std::byte* const device = cuda.place(kBytes);
  std::byte* const second_device = cuda.place(kBytes, 1);
  std::memcpy(device, on_gpu.data(), kBytes);
  std::memcpy(second_device, other.data(), kBytes);
  auto* const host = reinterpret_cast<std::byte*>(on_host.data());
  std::vector<int32_t> total(kCount);
  auto* const result = reinterpret_cast<std::byte*>(total.data());
  const int before = cuda.count("cuMemAlloc");
  const std::size_t cut = 4 * 777'777;
  sum({{result, kBytes}},
      {{{device, kBytes, first}},
       {{host, cut}, {host + cut, kBytes - cut}},
       {{second_device, kBytes, second}}},
      5);
  EXPECT_THAT(finish().cookies, ElementsAre(5));
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto wanted =
        static_cast<int32_t>(static_cast<uint32_t>(on_gpu[i]) + static_cast<uint32_t>(on_host[i]) +
                             static_cast<uint32_t>(other[i]));
    ASSERT_EQ(total[i], wanted) << i;
  }
  EXPECT_GE(cuda.count("cuLaunchKernel"), 4);
  EXPECT_EQ(cuda.count("cuMemAlloc"), before);
}

TEST_F(CudaSums, name_the_call_the_gpu_and_the_cure_if_the_driver_refuses) {
  prepare_sums(first);
  std::byte* const device = cuda.place(64);
  cuda.fails["cuLaunchKernel"] = kOutOfMemory;
  sum({{device, 64, first}}, {{{device, 64, first}}, {{device, 64, first}}}, 1);
  sum({{device, 64, first}}, {{{device, 64, first}}, {{cuda.place(64, 1), 64, second}}}, 2);
  cuda.run();
  const Counting sink = poll();
  ASSERT_EQ(sink.statuses.size(), 2u);
  for (const Status& status : sink.statuses) {
    EXPECT_THAT(
        status.message(),
        AllOf(HasSubstr("cuLaunchKernel of sum_uint32 on the GPU cuda:0 (Tesla K80, GPU-1010"),
              HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"), HasSubstr("Free memory of the GPU"),
              HasSubstr("RDMACOLL_CUDA_IPC=off")));
  }
}

TEST_F(CudaSums, name_the_gpu_on_which_they_have_failed) {
  prepare_sums(first);
  std::byte* const device = cuda.place(64);
  sum({{device, 64, first}}, {{{device, 64, first}}, {{device, 64, first}}}, 1);
  cuda.fails["cuEventQuery"] = kIllegalAddress;
  const Counting sink = poll();
  ASSERT_THAT(sink.cookies, ElementsAre(1));
  EXPECT_THAT(sink.statuses.front().message(),
              AllOf(HasSubstr("a sum on the GPU cuda:0 (Tesla K80, GPU-1010"),
                    HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"), HasSubstr("compute-sanitizer")));
}

}  // namespace
}  // namespace rdmacoll::cuda_test
