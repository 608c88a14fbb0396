// Converts between 16-bit floats and float32, for the loops of reduce_loops.h. It therefore stands
// in an unnamed namespace and does not use the standard library.
#pragma once

#include <cstdint>

namespace rdmacoll {
namespace {

template <typename To, typename From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// 16-bit floats as they lie in memory.
struct Half {
  uint16_t raw;
};
struct Bfloat16 {
  uint16_t raw;
};
static_assert(sizeof(Half) == 2 && sizeof(Bfloat16) == 2);

inline float widened(Bfloat16 value) { return bits<float>(uint32_t{value.raw} << 16); }

inline float widened(Half value) {
  const uint32_t magnitude = (uint32_t{value.raw} & 0x7fff) << 13;
  // Scaling by 2^112 moves the exponent's bias from 15 to 127 and normalises denormals.
  const uint32_t scaled = bits<uint32_t>(bits<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000;  // infinity and NaN
  const uint32_t sign = (uint32_t{value.raw} & 0x8000) << 16;
  return bits<float>((magnitude >= (uint32_t{0x7c00} << 13) ? special : scaled) | sign);
}

// Both round to nearest even; NaN has been made canonical before.
inline void narrow(float value, Bfloat16& into) {
  const uint32_t word = bits<uint32_t>(value);
  const uint32_t rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
  into.raw = static_cast<uint16_t>(value != value ? 0x7fc0 : rounded);
}

inline void narrow(float value, Half& into) {
  const uint32_t word = bits<uint32_t>(value);
  const uint32_t sign = (word >> 16) & 0x8000;
  const uint32_t magnitude = word & 0x7fffffff;
  // Moves the exponent's bias from 127 to 15 and rounds. A carry may reach infinity.
  const uint32_t normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14 the result is denormal: the addition aligns the bits and rounds them.
  const uint32_t tiny = bits<uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000;
  uint32_t result = magnitude < 0x38800000 ? tiny : normal;
  result = magnitude >= 0x47800000 ? 0x7c00 : result;
  result |= sign;
  into.raw = static_cast<uint16_t>(magnitude > 0x7f800000 ? 0x7e00 : result);
}

}  // namespace
}  // namespace rdmacoll
