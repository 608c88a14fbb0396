// The floating-point mode of a job, so that its bits do not depend on the thread that performs it.
// Threads of TensorFlow flush denormals to zero, and so does a process that loaded a library built
// with -ffast-math.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rdmacoll {

// The register of the calling thread's mode, and the value for: round to nearest even, denormals
// kept, NaNs kept, exceptions masked. Sticky flags only record what has happened.
#if defined(__x86_64__)
struct FloatRegister {
  static constexpr uint64_t kSticky = 0x3f, kDefault = 0x1f80;
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
};
#elif defined(__aarch64__)
struct FloatRegister {
  static constexpr uint64_t kSticky = 0, kDefault = 0;
  static uint64_t read() {
    uint64_t mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
};
#else
#error "This processor needs a FloatRegister, or ranks would add in different modes."
#endif

// During its lifetime the thread has the default mode.
class FloatMode {
 public:
  FloatMode() : before_(FloatRegister::read()) {
    if (differs()) FloatRegister::write(FloatRegister::kDefault);
  }
  ~FloatMode() {
    if (differs()) FloatRegister::write(before_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  bool differs() const { return (before_ & ~FloatRegister::kSticky) != FloatRegister::kDefault; }

  uint64_t before_;
};

}  // namespace rdmacoll
