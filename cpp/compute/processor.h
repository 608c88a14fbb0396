// Which instruction sets this processor has and this system saves the registers of. The compilers'
// own __builtin_cpu_supports needs a table in their runtime library, which zig's has not.
#pragma once

#include <cstdint>

namespace rdmacoll {

// What `cpuid` and `xgetbv` say; zeros on other processor families.
struct ProcessorWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint64_t saved = 0;  // XCR0: the registers that survive a change of threads
};

ProcessorWords read_processor();

bool has_avx2(const ProcessorWords& words);    // and F16C
bool has_avx512(const ProcessorWords& words);  // F, BW, DQ, VL; and all of the above

}  // namespace rdmacoll
