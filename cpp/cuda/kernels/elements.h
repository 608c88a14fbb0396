// Elements of the device kernels: how each dtype is loaded, combined, scaled and stored. Results
// have the bits of compute/reduce_loops.h.
#pragma once

#include "cuda/kernels/machine.h"

namespace rdmacoll::cuda {

// A NaN result is the positive quiet NaN. The test is one of integers, since a compiler may take
// the NaNs of an addition for each other.
RC_INLINE unsigned canonical_bits(float value) {
  const unsigned bits = bits_of(value);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits;
}
RC_INLINE Word canonical_bits(double value) {
  const Word bits = bits_of(value);
  return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000 ? 0x7ff8000000000000 : bits;
}

// `Raw` is the element in memory, `Value` the type in which it is combined.
template <typename T, typename Unsigned>
struct Integer {
  using Raw = Unsigned;
  using Value = T;
  static constexpr bool kIsInteger = true;
  static constexpr bool kIsMixed = false;

  static RC_INLINE Value load(Raw raw) { return static_cast<T>(raw); }
  static RC_INLINE Raw store(Value value) { return static_cast<Raw>(value); }

  // In float64, truncated toward zero, and kept within the type.
  static RC_INLINE Value finished(Value value, const ReduceParameters& job) {
    if (job.finish == Finish::untouched) return value;
    constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(0);
    constexpr Raw kTop = static_cast<Raw>(Raw{1} << (8 * sizeof(T) - 1));
    constexpr T kLowest = static_cast<T>(kIsSigned ? kTop : Raw{0});
    constexpr T kHighest =
        static_cast<T>(kIsSigned ? static_cast<Raw>(kTop - 1) : static_cast<Raw>(~Raw{0}));
    const double scaled = static_cast<double>(value) / job.divisor * job.factor;
    if (!(scaled > static_cast<double>(kLowest))) return scaled != scaled ? T{0} : kLowest;
    if (scaled >= static_cast<double>(kHighest)) return kHighest;
    return static_cast<T>(scaled);
  }
};
using Uint8 = Integer<unsigned char, unsigned char>;
using Int8 = Integer<signed char, unsigned char>;
using Uint16 = Integer<unsigned short, unsigned short>;
using Int16 = Integer<short, unsigned short>;
using Uint32 = Integer<unsigned, unsigned>;
using Int32 = Integer<int, unsigned>;
using Uint64 = Integer<Word, Word>;
using Int64 = Integer<long long, Word>;

// Multiplies and divides in the type of the sum.
template <typename Value>
RC_INLINE Value finished_real(Value value, const ReduceParameters& job) {
  if (job.finish == Finish::once) value = value * static_cast<Value>(job.once);
  if (job.finish == Finish::full) {
    value = value / static_cast<Value>(job.divisor) * static_cast<Value>(job.factor);
  }
  return value;
}

template <typename T, typename Unsigned>
struct Real {
  using Raw = Unsigned;
  using Value = T;
  static constexpr bool kIsInteger = false;
  static constexpr bool kIsMixed = false;

  static RC_INLINE Value load(Raw raw) { return real_of(raw); }
  static RC_INLINE Raw store(Value value) { return canonical_bits(value); }
  static RC_INLINE Value finished(Value value, const ReduceParameters& job) {
    return finished_real(value, job);
  }
};
using Float32 = Real<float, unsigned>;
using Float64 = Real<double, Word>;

// 16-bit floats are combined in float32 and rounded once.
template <bool is_mixed>
struct AnyFloat16 {
  using Raw = unsigned short;
  using Value = float;
  static constexpr bool kIsInteger = false;
  static constexpr bool kIsMixed = is_mixed;

  static RC_INLINE Value load(Raw raw) { return half_to_float(raw); }
  static RC_INLINE Raw store(Value value) {
    const unsigned bits = canonical_bits(value);
    return bits == 0x7fc00000 ? Raw{0x7e00} : float_to_half(value);
  }
  static RC_INLINE Value finished(Value value, const ReduceParameters& job) {
    return finished_real(value, job);
  }
};
using Float16 = AnyFloat16<false>;
using MixedFloat16 = AnyFloat16<true>;

template <bool is_mixed>
struct AnyBfloat16 {
  using Raw = unsigned short;
  using Value = float;
  static constexpr bool kIsInteger = false;
  static constexpr bool kIsMixed = is_mixed;

  static RC_INLINE Value load(Raw raw) { return real_of(static_cast<unsigned>(raw) << 16); }
  static RC_INLINE Raw store(Value value) {
    const unsigned bits = canonical_bits(value);
    // Rounds to nearest even. The canonical NaN keeps its bits.
    return static_cast<Raw>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  static RC_INLINE Value finished(Value value, const ReduceParameters& job) {
    return finished_real(value, job);
  }
};
using Bfloat16 = AnyBfloat16<false>;
using MixedBfloat16 = AnyBfloat16<true>;

// Unsigned types wrap. Smaller ones than 32 bits would become signed ints first.
template <unsigned bytes>
struct WrappingOf {
  using Type = unsigned;
};
template <>
struct WrappingOf<8> {
  using Type = Word;
};
template <typename T>
using Wrapping = typename WrappingOf<sizeof(T)>::Type;

template <typename T>
RC_INLINE T sum_of(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
RC_INLINE float sum_of(float a, float b) { return a + b; }
RC_INLINE double sum_of(double a, double b) { return a + b; }

template <typename T>
RC_INLINE T product_of(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}
RC_INLINE float product_of(float a, float b) { return a * b; }
RC_INLINE double product_of(double a, double b) { return a * b; }

// Operators combine `n` elements: a = a op b.
struct Sum {
  static constexpr bool kCopies = false;
  static constexpr bool kHasUnits = true;

  RC_INLINE explicit Sum(unsigned /*op*/) {}
  template <unsigned n, typename T>
  RC_INLINE void combine(T (&a)[n], const T (&b)[n]) const {
    RC_UNROLL
    for (unsigned i = 0; i < n; ++i) a[i] = sum_of(a[i], b[i]);
  }
};

// Any operator. A NaN wins a minimum or maximum in either place.
struct Any {
  static constexpr bool kCopies = false;
  static constexpr bool kHasUnits = false;

  RC_INLINE explicit Any(unsigned op) : op(op) {}
  template <unsigned n, typename T>
  RC_INLINE void combine(T (&a)[n], const T (&b)[n]) const {
    if (op == kMin) {
      RC_UNROLL
      for (unsigned i = 0; i < n; ++i) a[i] = (a[i] < b[i] || a[i] != a[i]) ? a[i] : b[i];
    } else if (op == kMax) {
      RC_UNROLL
      for (unsigned i = 0; i < n; ++i) a[i] = (a[i] > b[i] || a[i] != a[i]) ? a[i] : b[i];
    } else if (op == kProduct) {
      RC_UNROLL
      for (unsigned i = 0; i < n; ++i) a[i] = product_of(a[i], b[i]);
    } else {
      RC_UNROLL
      for (unsigned i = 0; i < n; ++i) a[i] = sum_of(a[i], b[i]);
    }
  }
  static constexpr unsigned kMin = 2, kMax = 3, kProduct = 4;  // numbers of ReduceOp
  const unsigned op;
};

// Stands for the operator where there is one source, whose bits are copied.
struct Copy {
  static constexpr bool kCopies = true;
  static constexpr bool kHasUnits = true;

  RC_INLINE explicit Copy(unsigned /*op*/) {}
  template <unsigned n, typename T>
  RC_INLINE void combine(T (&)[n], const T (&)[n]) const {}
};

}  // namespace rdmacoll::cuda
