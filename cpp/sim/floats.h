// 16-bit floats, computed exactly with float64. The kernels are checked against this code, so it
// shares none with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace rdmacoll::narrow {

// A small float format. `digits`: bits of the significand, including the hidden one. `lowest`,
// `highest`: the exponents of normal numbers.
struct Format {
  int digits;
  int lowest;
  int highest;
};
inline constexpr Format kFloat16{11, -14, 15};
inline constexpr Format kBfloat16{8, -126, 127};

inline uint16_t encode(Format format, float value) {
  const int fraction_bits = format.digits - 1;
  const auto infinity = static_cast<uint16_t>((2 * format.highest + 1) << fraction_bits);
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1U << (fraction_bits - 1));
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  int exponent = format.lowest;
  if (magnitude != 0 && !std::isinf(magnitude)) {
    exponent = std::max(std::ilogb(magnitude), format.lowest);
  }
  if (std::isinf(magnitude)) return sign | infinity;
  // In units of the last place, which float64 represents exactly. nearbyint rounds ties to even.
  const double units = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
  const double rounded = std::ldexp(units, exponent - fraction_bits);
  if (rounded >= std::ldexp(1.0, format.highest + 1)) return sign | infinity;
  if (rounded < std::ldexp(1.0, format.lowest)) return sign | static_cast<uint16_t>(units);
  const int final_exponent = std::ilogb(rounded);
  const auto significand =
      static_cast<uint32_t>(std::ldexp(rounded, fraction_bits - final_exponent));
  const auto biased = static_cast<uint32_t>(final_exponent - format.lowest + 1);
  return static_cast<uint16_t>(sign | biased << fraction_bits |
                               (significand & ((1U << fraction_bits) - 1)));
}

inline float decode(Format format, uint16_t raw) {
  const int fraction_bits = format.digits - 1;
  const int biased = (raw & 0x7fff) >> fraction_bits;
  const int fraction = raw & ((1 << fraction_bits) - 1);
  const float sign = raw & 0x8000 ? -1.0F : 1.0F;
  if (biased == 2 * format.highest + 1) {
    if (fraction != 0) return std::numeric_limits<float>::quiet_NaN();
    return sign * std::numeric_limits<float>::infinity();
  }
  const int hidden = biased == 0 ? 0 : 1 << fraction_bits;
  const int exponent = std::max(biased, 1) - 1 + format.lowest - fraction_bits;
  return sign * static_cast<float>(std::ldexp(hidden + fraction, exponent));
}

}  // namespace rdmacoll::narrow
