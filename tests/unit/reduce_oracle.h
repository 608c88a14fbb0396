// Computes the expected result of a reduction, slowly and element by element. The tree is a
// recursion. 16-bit floats use exact arithmetic on float64. The kernels share no code with it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "sim/floats.h"

namespace rdmacoll::oracle {

using Bytes = std::vector<std::byte>;
using narrow::decode;
using narrow::encode;
using narrow::Format;
using narrow::kBfloat16;
using narrow::kFloat16;

template <typename T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<uint64_t>(a);
    const auto y = static_cast<uint64_t>(b);
    if (op == ReduceOp::sum) return static_cast<T>(x + y);
    if (op == ReduceOp::product) return static_cast<T>(x * y);
  } else {
    if (op == ReduceOp::sum) return a + b;
    if (op == ReduceOp::product) return a * b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  }
  if (op == ReduceOp::min) return a < b ? a : b;
  return a > b ? a : b;
}

template <typename T>
T tree(ReduceOp op, const T* values, std::size_t n) {
  if (n == 1) return values[0];
  const std::size_t left = std::bit_floor(n - 1);
  return combine(op, tree(op, values, left), tree(op, values + left, n - left));
}

template <typename T>
T scaled(T value, double divisor, double factor) {
  if (divisor == 1.0 && factor == 1.0) return value;
  if constexpr (std::is_integral_v<T>) {
    const double real = std::trunc(static_cast<double>(value) / divisor * factor);
    if (std::isnan(real)) return 0;
    if (real <= static_cast<double>(std::numeric_limits<T>::min())) {
      return std::numeric_limits<T>::min();
    }
    if (real >= static_cast<double>(std::numeric_limits<T>::max())) {
      return std::numeric_limits<T>::max();
    }
    return static_cast<T>(real);
  } else {
    const T divided = value / static_cast<T>(divisor);
    return factor == 1.0 ? divided : divided * static_cast<T>(factor);
  }
}

template <typename T, typename Load, typename Store>
Bytes reduce_as(Dtype dtype, ReduceOp op, const std::vector<Bytes>& sources, double divisor,
                double factor, Load load, Store store) {
  Bytes result(sources[0].size());
  const std::size_t size = size_of(dtype);
  std::vector<T> values(sources.size());
  for (std::size_t at = 0; at < result.size(); at += size) {
    for (std::size_t i = 0; i < sources.size(); ++i) values[i] = load(sources[i].data() + at);
    T value = scaled(tree(op, values.data(), values.size()), divisor, factor);
    if constexpr (!std::is_integral_v<T>) {
      if (std::isnan(value)) value = std::numeric_limits<T>::quiet_NaN();
    }
    store(value, result.data() + at);
  }
  return result;
}

template <typename T>
Bytes reduce_plain(Dtype dtype, ReduceOp op, const std::vector<Bytes>& sources, double divisor,
                   double factor) {
  const auto load = [](const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  };
  const auto store = [](T value, std::byte* to) { std::memcpy(to, &value, sizeof value); };
  return reduce_as<T>(dtype, op, sources, divisor, factor, load, store);
}

inline Bytes reduce_small(Format format, Dtype dtype, ReduceOp op,
                          const std::vector<Bytes>& sources, double divisor, double factor) {
  const auto load = [format](const std::byte* from) {
    uint16_t raw = 0;
    std::memcpy(&raw, from, sizeof raw);
    return decode(format, raw);
  };
  const auto store = [format](float value, std::byte* to) {
    const uint16_t raw = encode(format, value);
    std::memcpy(to, &raw, sizeof raw);
  };
  return reduce_as<float>(dtype, op, sources, divisor, factor, load, store);
}

inline Bytes reduce(Dtype dtype, ReduceOp op, const std::vector<Bytes>& sources, double divisor = 1,
                    double factor = 1) {
  switch (dtype) {
    case Dtype::uint8:
      return reduce_plain<uint8_t>(dtype, op, sources, divisor, factor);
    case Dtype::int8:
      return reduce_plain<int8_t>(dtype, op, sources, divisor, factor);
    case Dtype::int32:
      return reduce_plain<int32_t>(dtype, op, sources, divisor, factor);
    case Dtype::int64:
      return reduce_plain<int64_t>(dtype, op, sources, divisor, factor);
    case Dtype::uint16:
      return reduce_plain<uint16_t>(dtype, op, sources, divisor, factor);
    case Dtype::uint32:
      return reduce_plain<uint32_t>(dtype, op, sources, divisor, factor);
    case Dtype::uint64:
      return reduce_plain<uint64_t>(dtype, op, sources, divisor, factor);
    case Dtype::int16:
      return reduce_plain<int16_t>(dtype, op, sources, divisor, factor);
    case Dtype::float32:
      return reduce_plain<float>(dtype, op, sources, divisor, factor);
    case Dtype::float64:
      return reduce_plain<double>(dtype, op, sources, divisor, factor);
    case Dtype::float16:
      return reduce_small(kFloat16, dtype, op, sources, divisor, factor);
    case Dtype::bfloat16:
      return reduce_small(kBfloat16, dtype, op, sources, divisor, factor);
    default:
      return {};
  }
}

// Half of the floats are ordinary numbers near 1. Random bits are mostly huge or tiny, so their
// sums would not round. The other half has any bits: NaN, infinities, denormals. Integers have any
// bits and wrap. min and max of +0 and -0 may be either, so these operators get no negative zero.
inline Bytes random_operand(Dtype dtype, std::size_t count, ReduceOp op, std::mt19937_64& random) {
  const std::size_t size = size_of(dtype);
  Bytes bytes(count * size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  if (is_integer(dtype)) return bytes;
  std::uniform_real_distribution<double> ordinary(-4.0, 4.0);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * size;
    if (random() % 2 == 0) {
      const double value = ordinary(random);
      const auto narrow = static_cast<float>(value);
      const uint16_t small = encode(dtype == Dtype::float16 ? kFloat16 : kBfloat16, narrow);
      if (size == 8) std::memcpy(at, &value, 8);
      if (size == 4) std::memcpy(at, &narrow, 4);
      if (size == 2) std::memcpy(at, &small, 2);
    }
    const bool is_extreme = op == ReduceOp::min || op == ReduceOp::max;
    uint64_t word = 0;
    std::memcpy(&word, at, size);
    if (is_extreme && word == uint64_t{1} << (8 * size - 1)) std::memset(at, 0, size);
  }
  return bytes;
}

inline constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product};

}  // namespace rdmacoll::oracle
