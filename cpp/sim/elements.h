// Access to elements of simulated tensors, by dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "sim/floats.h"

namespace rdmacoll {

// Calls `as` with a value of the dtype's type. 16-bit floats are passed as their bits.
template <typename As>
auto with_type(Dtype dtype, As as) {
  switch (dtype) {
    case Dtype::boolean:
    case Dtype::uint8:
      return as(uint8_t{});
    case Dtype::int8:
      return as(int8_t{});
    case Dtype::uint16:
    case Dtype::float16:
    case Dtype::bfloat16:
      return as(uint16_t{});
    case Dtype::int32:
      return as(int32_t{});
    case Dtype::int64:
      return as(int64_t{});
    case Dtype::float64:
      return as(double{});
    default:
      RC_ASSERT(dtype == Dtype::float32, name_of(dtype).data());
      return as(float{});
  }
}

inline const narrow::Format& format_of(Dtype dtype) {
  return dtype == Dtype::float16 ? narrow::kFloat16 : narrow::kBfloat16;
}

inline double element(Dtype dtype, const std::byte* at) {
  return with_type(dtype, [&](auto value) -> double {
    std::memcpy(&value, at, sizeof value);
    if constexpr (std::is_same_v<decltype(value), uint16_t>) {
      if (is_16_bit_float(dtype)) return narrow::decode(format_of(dtype), value);
    }
    return static_cast<double>(value);
  });
}

// Integers wrap around, floats are rounded.
inline void set_element(Dtype dtype, std::byte* at, double value) {
  with_type(dtype, [&](auto stored) {
    using Stored = decltype(stored);
    if constexpr (std::is_floating_point_v<Stored>) {
      stored = static_cast<Stored>(value);
    } else if (is_16_bit_float(dtype)) {
      stored = static_cast<Stored>(narrow::encode(format_of(dtype), static_cast<float>(value)));
    } else {
      stored = static_cast<Stored>(static_cast<int64_t>(value));
    }
    std::memcpy(at, &stored, sizeof stored);
  });
}

// The value after it is stored in the dtype.
inline double as_stored(Dtype dtype, double value) {
  std::byte memory[sizeof(double)];
  set_element(dtype, memory, value);
  return element(dtype, memory);
}

}  // namespace rdmacoll
