// The loops of the reductions. Each reduce_kernels_<set>.cc includes this file once and is compiled
// for that instruction set. So everything is in an unnamed namespace, and no function of the
// standard library is called. The linker could otherwise keep a shared inline function in a version
// that an old processor cannot run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "compute/narrow_floats.h"
#include "compute/reduce_kernels.h"

// A call in place is allowed, so `restrict` would be wrong. The compiler's own overlap check would
// send every call in place to a scalar loop. But no iteration depends on another.
#if defined(__clang__)
#define RC_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define RC_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif

namespace rdmacoll {
namespace {

// Elements evaluated at a time if the tree needs intermediate results, which then stay in L1.
constexpr std::size_t kTile = 256;

template <typename T>
constexpr bool kIsNarrow = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;

template <typename T>
struct AccumulatorOf {
  using Type = T;
};
template <>
struct AccumulatorOf<Half> {
  using Type = float;
};
template <>
struct AccumulatorOf<Bfloat16> {
  using Type = float;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::Type;

// An unsigned type of at least 32 bits, whose wrapping is defined. Without it, uint8 times uint8
// would be a product of ints, and int32 plus int32 could overflow.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Sum {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};
// A NaN wins in either place: a if a is NaN; b if b is, since then a < b is false.
struct Min {
  template <typename T>
  static T combine(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <typename T>
  static T combine(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

// How results are finished. `once` multiplies by the factor, or by the exact reciprocal of a
// divisor that is a power of two (equal bits, much less time).
enum class Finish { untouched, once, full };

template <typename T>
struct Scale {
  T once;
  T divisor;
  T factor;
};

template <typename T>
inline T finite_or_canonical(T value) {
  return value != value ? static_cast<T>(__builtin_nan("")) : value;
}

template <Finish finish, typename T>
inline T finished(T value, const Scale<T>& scale) {
  if constexpr (finish == Finish::once) value = value * scale.once;
  if constexpr (finish == Finish::full) value = value / scale.divisor * scale.factor;
  return finite_or_canonical(value);
}

template <Finish finish, typename T>
requires std::is_integral_v<T>
inline T finished(T value, const Scale<double>& scale) {
  if constexpr (finish == Finish::untouched) return value;
  // The limits as float64. The upper one of int64 rounds up to 2^63, so the test for it is "not
  // below".
  constexpr T kLowest =
      static_cast<T>(std::is_signed_v<T> ? static_cast<uint64_t>(1) << (8 * sizeof(T) - 1) : 0);
  constexpr T kHighest = static_cast<T>(
      static_cast<std::make_unsigned_t<T>>(~static_cast<std::make_unsigned_t<T>>(0)) >>
      (std::is_signed_v<T> ? 1 : 0));
  const double scaled = static_cast<double>(value) / scale.divisor * scale.factor;
  if (!(scaled > static_cast<double>(kLowest))) return scaled != scaled ? T{0} : kLowest;
  if (scaled >= static_cast<double>(kHighest)) return kHighest;
  return static_cast<T>(scaled);
}

template <typename T>
using ScaleOf = Scale<std::conditional_t<std::is_integral_v<T>, double, Accumulator<T>>>;

template <typename T>
inline bool is_power_of_two(T value) {
  int exponent = 0;
  // Excludes the ends of the range, where a reciprocal would be denormal or infinite.
  return value > T{0} && __builtin_frexp(static_cast<double>(value), &exponent) == 0.5 &&
         exponent > -100 && exponent < 100;
}

template <typename T>
inline Accumulator<T> loaded(const T& value) {
  if constexpr (kIsNarrow<T>) {
    return widened(value);
  } else {
    return value;
  }
}

template <typename T>
inline void store(Accumulator<T> value, T& into) {
  if constexpr (kIsNarrow<T>) {
    narrow(value, into);
  } else {
    into = value;
  }
}

// Whether the tree of three or four operands is one loop. gcc turns nested choices into slow
// branches.
template <typename Op>
constexpr bool kFusesFour = !std::is_same_v<Op, Min> && !std::is_same_v<Op, Max>;

template <typename T, std::size_t n>
struct Operands {
  const T *a, *b, *c, *d;

  Operands(const void* const* sources, std::size_t first)
      : a(static_cast<const T*>(sources[0]) + first),
        b(static_cast<const T*>(sources[n > 1 ? 1 : 0]) + first),
        c(static_cast<const T*>(sources[n > 2 ? 2 : 0]) + first),
        d(static_cast<const T*>(sources[n > 3 ? 3 : 0]) + first) {}

  template <typename Op>
  Accumulator<T> tree(std::size_t i) const {
    Accumulator<T> value = loaded(a[i]);
    if constexpr (n >= 2) value = Op::combine(value, loaded(b[i]));
    if constexpr (n == 3) value = Op::combine(value, loaded(c[i]));
    if constexpr (n == 4) value = Op::combine(value, Op::combine(loaded(c[i]), loaded(d[i])));
    return value;
  }
};

template <typename T, typename Op, std::size_t n, Finish finish>
void fused(T* to, const void* const* sources, std::size_t count, const ScaleOf<T>& given) {
  const Operands<T, n> operands(sources, 0);
  const ScaleOf<T> scale = given;  // a copy, which stores through `to` cannot change
  RC_INDEPENDENT_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    store(finished<finish>(operands.template tree<Op>(i), scale), to[i]);
  }
}

template <typename T, typename Op, std::size_t n>
void fused_tile(Accumulator<T>* __restrict into, const void* const* sources, std::size_t first,
                std::size_t count) {
  const Operands<T, n> operands(sources, first);
  for (std::size_t i = 0; i < count; ++i) into[i] = operands.template tree<Op>(i);
}

// Whether the compiler vectorises the conversion within a loop. float16 has an instruction for it,
// which works on a tile.
template <typename T>
constexpr bool kIsFusible = !std::is_same_v<T, Half>;

template <typename T>
void widen(Accumulator<T>* __restrict into, const T* __restrict from, std::size_t count) {
  std::size_t i = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, Half>) {
    for (; i + 8 <= count; i += 8) {
      const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(into + i, _mm256_cvtph_ps(raw));
    }
  }
#endif
  for (; i < count; ++i) into[i] = loaded(from[i]);
}

template <typename T, Finish finish>
void finish_tile(T* __restrict to, Accumulator<T>* __restrict tile, std::size_t count,
                 const ScaleOf<T>& given) {
  const ScaleOf<T> scale = given;
  if constexpr (kIsFusible<T>) {
    for (std::size_t i = 0; i < count; ++i) store(finished<finish>(tile[i], scale), to[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) tile[i] = finished<finish>(tile[i], scale);
    std::size_t i = 0;
#if defined(__F16C__)
    if constexpr (std::is_same_v<T, Half>) {
      for (; i + 8 <= count; i += 8) {
        const __m128i raw = _mm256_cvtps_ph(_mm256_loadu_ps(tile + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), raw);
      }
    }
#endif
    for (; i < count; ++i) narrow(tile[i], to[i]);
  }
}

// The canonical tree over sources[0..n) at [first, first + count).
template <typename T, typename Op>
void evaluate(Accumulator<T>* __restrict into, const void* const* sources, std::size_t n,
              std::size_t first, std::size_t count) {
  if (n == 1) return widen(into, static_cast<const T*>(sources[0]) + first, count);
  if constexpr (kIsFusible<T>) {
    if (n == 2) return fused_tile<T, Op, 2>(into, sources, first, count);
    if (n == 3 && kFusesFour<Op>) return fused_tile<T, Op, 3>(into, sources, first, count);
    if (n == 4 && kFusesFour<Op>) return fused_tile<T, Op, 4>(into, sources, first, count);
  }
  std::size_t left = 1;
  while (left * 2 < n) left *= 2;
  alignas(64) Accumulator<T> right[kTile];
  evaluate<T, Op>(into, sources, left, first, count);
  evaluate<T, Op>(right, sources + left, n - left, first, count);
  for (std::size_t i = 0; i < count; ++i) into[i] = Op::combine(into[i], right[i]);
}

template <typename T, typename Op, Finish finish>
void reduce_finishing(void* to, const void* const* sources, std::size_t n, std::size_t count,
                      const ScaleOf<T>& scale) {
  T* into = static_cast<T*>(to);
  if constexpr (kIsFusible<T>) {
    if (n == 1) return fused<T, Op, 1, finish>(into, sources, count, scale);
    if (n == 2) return fused<T, Op, 2, finish>(into, sources, count, scale);
    if constexpr (std::is_same_v<T, float> && std::is_same_v<Op, Sum>) {
      if (n == 3) return fused<T, Op, 3, finish>(into, sources, count, scale);
      if (n == 4) return fused<T, Op, 4, finish>(into, sources, count, scale);
    }
  }
  alignas(64) Accumulator<T> tile[kTile];
  for (std::size_t first = 0; first < count; first += kTile) {
    const std::size_t length = count - first < kTile ? count - first : kTile;
    evaluate<T, Op>(tile, sources, n, first, length);
    finish_tile<T, finish>(into + first, tile, length, scale);
  }
}

// Calls `as.operator()<finish>(scale)` with the cheapest finish that does what `scaling` says.
template <typename T, typename As>
void with_finish(const Scaling& scaling, As as) {
  using Real = decltype(ScaleOf<T>::once);
  ScaleOf<T> scale{static_cast<Real>(scaling.factor), static_cast<Real>(scaling.divisor),
                   static_cast<Real>(scaling.factor)};
  if (scale.divisor == Real{1} && scale.factor == Real{1}) {
    return as.template operator()<Finish::untouched>(scale);
  }
  if constexpr (!std::is_integral_v<T>) {
    if (scale.factor == Real{1} && is_power_of_two(scale.divisor)) {
      scale.once = Real{1} / scale.divisor;
      return as.template operator()<Finish::once>(scale);
    }
    if (scale.divisor == Real{1}) return as.template operator()<Finish::once>(scale);
  }
  return as.template operator()<Finish::full>(scale);
}

template <typename T, typename Op>
void reduce(void* to, const void* const* sources, std::size_t n, std::size_t count,
            const Scaling& scaling) {
  with_finish<T>(scaling, [&]<Finish finish>(const ScaleOf<T>& scale) {
    reduce_finishing<T, Op, finish>(to, sources, n, count, scale);
  });
}

// evaluate() over sources of both widths. The narrow ones are multiplied first.
template <typename T, typename Op>
void evaluate_mixed(float* __restrict into, const void* const* sources, const uint8_t* wide,
                    std::size_t n, std::size_t first, std::size_t count, float prescale) {
  if (n == 1) {
    if (*wide == 0) {
      widen(into, static_cast<const T*>(sources[0]) + first, count);
      if (prescale == 1.0F) return;
      for (std::size_t i = 0; i < count; ++i) into[i] *= prescale;
      return;
    }
    const float* __restrict from = static_cast<const float*>(sources[0]) + first;
    for (std::size_t i = 0; i < count; ++i) into[i] = from[i];
    return;
  }
  std::size_t left = 1;
  while (left * 2 < n) left *= 2;
  alignas(64) float right[kTile];
  evaluate_mixed<T, Op>(into, sources, wide, left, first, count, prescale);
  evaluate_mixed<T, Op>(right, sources + left, wide + left, n - left, first, count, prescale);
  for (std::size_t i = 0; i < count; ++i) into[i] = Op::combine(into[i], right[i]);
}

template <typename T, typename Op>
void reduce_mixed(void* to, const void* const* sources, std::size_t n, std::size_t count,
                  const Scaling& scaling, const Widths& wide) {
  alignas(64) float tile[kTile];
  const auto prescale = static_cast<float>(scaling.prescale);
  with_finish<T>(scaling, [&]<Finish finish>(const ScaleOf<T>& scale) {
    for (std::size_t first = 0; first < count; first += kTile) {
      const std::size_t length = count - first < kTile ? count - first : kTile;
      evaluate_mixed<T, Op>(tile, sources, wide.sources, n, first, length, prescale);
      if (wide.to) {
        float* into = static_cast<float*>(to) + first;
        for (std::size_t i = 0; i < length; ++i) into[i] = finite_or_canonical(tile[i]);
      } else {
        finish_tile<T, finish>(static_cast<T*>(to) + first, tile, length, scale);
      }
    }
  });
}

// One row of the table: sum, average (the caller divides), min, max, product.
#define RC_KERNEL_ROW(function, T) \
  { function<T, Sum>, function<T, Sum>, function<T, Min>, function<T, Max>, function<T, Product> }
#define RC_KERNEL_TABLE(name)                                                       \
  {                                                                                 \
    name, {RC_KERNEL_ROW(reduce, uint8_t),  RC_KERNEL_ROW(reduce, int8_t),          \
           RC_KERNEL_ROW(reduce, int32_t),  RC_KERNEL_ROW(reduce, int64_t),         \
           RC_KERNEL_ROW(reduce, Half),     RC_KERNEL_ROW(reduce, Bfloat16),        \
           RC_KERNEL_ROW(reduce, float),    RC_KERNEL_ROW(reduce, double),          \
           RC_KERNEL_ROW(reduce, uint16_t), RC_KERNEL_ROW(reduce, uint32_t),        \
           RC_KERNEL_ROW(reduce, uint64_t), RC_KERNEL_ROW(reduce, int16_t)},        \
        {RC_KERNEL_ROW(reduce_mixed, Half), RC_KERNEL_ROW(reduce_mixed, Bfloat16)}, \
  }

}  // namespace
}  // namespace rdmacoll
