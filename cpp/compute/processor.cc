#include "compute/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rdmacoll {
namespace {

constexpr bool has_all(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

// Bits, as numbered in the manual of the architecture.
constexpr uint32_t kOsSaves = 1u << 27;  // xgetbv exists
constexpr uint32_t kAvx = 1u << 28, kF16c = 1u << 29;
constexpr uint32_t kAvx2 = 1u << 5;
constexpr uint32_t kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
constexpr uint64_t kSavesYmm = 0x06, kSavesZmm = 0xe6;

}  // namespace

ProcessorWords read_processor() {
  ProcessorWords words;
#if defined(__x86_64__)
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) words.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) words.leaf7_ebx = ebx;
  if (has_all(words.leaf1_ecx, kOsSaves)) {
    uint32_t low = 0, high = 0;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.saved = uint64_t{high} << 32 | low;
  }
#endif
  return words;
}

bool has_avx2(const ProcessorWords& words) {
  return has_all(words.leaf1_ecx, kOsSaves | kAvx | kF16c) && has_all(words.leaf7_ebx, kAvx2) &&
         has_all(words.saved, kSavesYmm);
}

bool has_avx512(const ProcessorWords& words) {
  return has_avx2(words) && has_all(words.leaf7_ebx, kAvx512) && has_all(words.saved, kSavesZmm);
}

}  // namespace rdmacoll
