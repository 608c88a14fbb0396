// The instruction sets that this processor has and whose registers the system saves. The compilers'
// own __builtin_cpu_supports needs a table in their runtime library, which zig's library lacks.
#pragma once

#include <cstdint>

namespace rdmacoll {

// The results of `cpuid` and `xgetbv`; zeros on other processor families.
struct ProcessorWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint64_t saved = 0;  // XCR0: the registers that survive a change of threads
};

ProcessorWords read_processor();

bool has_avx2(const ProcessorWords& words);    // and F16C
bool has_avx512(const ProcessorWords& words);  // F, BW, DQ, VL; and all of the above

}  // namespace rdmacoll
