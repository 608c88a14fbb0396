// Element types and reduction operators, with their numbers on the wire and in the C ABI.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace rdmacoll {

// Values are part of the C ABI and of the wire: append only.
enum class Dtype : uint8_t {
  uint8 = 0,
  int8 = 1,
  int32 = 2,
  int64 = 3,
  float16 = 4,
  bfloat16 = 5,
  float32 = 6,
  float64 = 7,
  boolean = 8,  // reduced by min ("and") and max ("or")
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
  int16 = 12,
  complex64 = 13,
  complex128 = 14,
};
enum class ReduceOp : uint8_t { sum = 0, average = 1, min = 2, max = 3, product = 4 };
inline constexpr int kReduceOps = 5;

// The properties of a dtype, by its number.
struct DtypeRow {
  std::string_view name;
  uint8_t bytes;
  enum class Number : uint8_t { integer, float16, complex, other } number;
  bool is_reducible;  // by every operator; complex numbers can only be added
};
inline constexpr std::array kDtypeRows{
    DtypeRow{"uint8", 1, DtypeRow::Number::integer, true},
    DtypeRow{"int8", 1, DtypeRow::Number::integer, true},
    DtypeRow{"int32", 4, DtypeRow::Number::integer, true},
    DtypeRow{"int64", 8, DtypeRow::Number::integer, true},
    DtypeRow{"float16", 2, DtypeRow::Number::float16, true},
    DtypeRow{"bfloat16", 2, DtypeRow::Number::float16, true},
    DtypeRow{"float32", 4, DtypeRow::Number::other, true},
    DtypeRow{"float64", 8, DtypeRow::Number::other, true},
    DtypeRow{"bool", 1, DtypeRow::Number::other, false},
    DtypeRow{"uint16", 2, DtypeRow::Number::integer, true},
    DtypeRow{"uint32", 4, DtypeRow::Number::integer, true},
    DtypeRow{"uint64", 8, DtypeRow::Number::integer, true},
    DtypeRow{"int16", 2, DtypeRow::Number::integer, true},
    DtypeRow{"complex64", 8, DtypeRow::Number::complex, false},
    DtypeRow{"complex128", 16, DtypeRow::Number::complex, false},
};
inline constexpr int kDtypes = kDtypeRows.size();
inline const DtypeRow& row_of(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  RC_ASSERT(index < kDtypeRows.size());
  return kDtypeRows[index];
}
// Called in every step of a small collective, so it is inline.
inline std::size_t size_of(Dtype dtype) { return row_of(dtype).bytes; }
inline std::string_view name_of(Dtype dtype) { return row_of(dtype).name; }
inline bool is_reducible(Dtype dtype, ReduceOp op) {
  const bool is_extremum = op == ReduceOp::min || op == ReduceOp::max;
  if (row_of(dtype).number == DtypeRow::Number::complex) {
    return op == ReduceOp::sum || op == ReduceOp::average;
  }
  return row_of(dtype).is_reducible || (dtype == Dtype::boolean && is_extremum);
}
inline bool is_integer(Dtype dtype) { return row_of(dtype).number == DtypeRow::Number::integer; }
inline bool is_16_bit_float(Dtype dtype) {
  return row_of(dtype).number == DtypeRow::Number::float16;
}
// The dtype in which a sum adds. A complex number is added as its two components.
inline Dtype component_of(Dtype dtype) {
  if (row_of(dtype).number != DtypeRow::Number::complex) return dtype;
  return dtype == Dtype::complex64 ? Dtype::float32 : Dtype::float64;
}
// Whether partial sums stay in float32. They would otherwise be rounded twice, or overflow before
// an average.
inline bool has_wide_sums(Dtype dtype, ReduceOp op) {
  return is_16_bit_float(dtype) && op != ReduceOp::min && op != ReduceOp::max;
}
std::string_view name_of(ReduceOp op);
std::optional<Dtype> dtype_from(std::string_view name);

}  // namespace rdmacoll
