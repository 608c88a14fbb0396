// The floating-point mode of a job, so that its bits do not depend on the thread that performs it.
// Threads of TensorFlow flush denormals to zero, and so does a process that loaded a library built
// with -ffast-math.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rdmacoll {

#if defined(__x86_64__)
// During its lifetime: round to nearest even, denormals kept, exceptions masked.
class FloatMode {
 public:
  FloatMode() : before_(_mm_getcsr()) {
    if ((before_ & ~kStickyFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatMode() {
    if ((before_ & ~kStickyFlags) != kDefault) _mm_setcsr(before_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  static constexpr unsigned kStickyFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;
  unsigned before_;
};
#else
// On other processors, threads keep the default mode.
class FloatMode {
 public:
  FloatMode() {}
};
#endif

}  // namespace rdmacoll
