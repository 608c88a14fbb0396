// Instructions that C++ has no words for: those of x86-64, and of 64-bit ARM. The build refuses
// other processors.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace rdmacoll {

// The processor's counter.
inline uint64_t processor_ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#endif
}

// Returns when the earlier writes of this thread are in the cache or in memory.
inline void await_writes() {
#if defined(__x86_64__)
  _mm_mfence();
#else
  asm volatile("dsb ish" : : : "memory");
#endif
}

// Call it between two looks at memory that another core will write. The core's other hyper-thread
// gets more of it, and the core draws less power.
inline void relax_core() {
#if defined(__x86_64__)
  _mm_pause();
#else
  asm volatile("isb");  // most cores take `yield` for no instruction at all
#endif
}

// The next access to this line is a write.
inline void prefetch_to_write(const std::byte& line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(line));  // without effect on processors that lack it
#else
  __builtin_prefetch(&line, 1);
#endif
}

}  // namespace rdmacoll
