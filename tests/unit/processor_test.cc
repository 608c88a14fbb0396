// Instruction sets are used where processor and system both have them.
#include "compute/processor.h"

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rdmacoll {
namespace {

#if defined(__x86_64__)
TEST(Processor, agrees_with_the_compilers_own_reading) {
  const ProcessorWords words = read_processor();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  ASSERT_TRUE(__get_cpuid(1, &eax, &ebx, &ecx, &edx));
  const bool f16c = (ecx & bit_F16C) != 0;  // a name that the builtin of clang does not know
  const bool avx2 = __builtin_cpu_supports("avx2") && f16c;
  EXPECT_EQ(has_avx2(words), avx2);
  EXPECT_EQ(has_avx512(words),
            avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
}
#endif

constexpr ProcessorWords kHasAll{0x38000000, 0xc0030020, 0xe6};

TEST(Processor, every_bit_is_needed) {
  EXPECT_TRUE(has_avx2(kHasAll));
  EXPECT_TRUE(has_avx512(kHasAll));
  for (int bit = 0; bit < 32; ++bit) {
    ProcessorWords lacking = kHasAll;
    lacking.leaf1_ecx &= ~(1u << bit);
    EXPECT_EQ(has_avx2(lacking), lacking.leaf1_ecx == kHasAll.leaf1_ecx) << bit;
    lacking = kHasAll;
    lacking.leaf7_ebx &= ~(1u << bit);
    EXPECT_EQ(has_avx512(lacking), lacking.leaf7_ebx == kHasAll.leaf7_ebx) << bit;
    EXPECT_EQ(has_avx2(lacking), bit != 5) << bit;
  }
}

TEST(Processor, registers_that_the_system_does_not_save_are_not_used) {
  ProcessorWords words = kHasAll;
  words.saved = 0x06;
  EXPECT_TRUE(has_avx2(words));
  EXPECT_FALSE(has_avx512(words));
  words.saved = 0x02;
  EXPECT_FALSE(has_avx2(words));
}

}  // namespace
}  // namespace rdmacoll
