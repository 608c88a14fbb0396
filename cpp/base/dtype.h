// Element types and reduction operators, with the numbers they have on the wire and in the C ABI.
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
  // Moved but never reduced (broadcast and allgather take them):
  boolean = 8,
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
  int16 = 12,
  complex64 = 13,
  complex128 = 14,
};
inline constexpr int kDtypes = 15;

enum class ReduceOp : uint8_t { sum = 0, average = 1, min = 2, max = 3, product = 4 };
inline constexpr int kReduceOps = 5;

// By number; a size is asked for in every step of a small collective.
inline constexpr std::array<uint8_t, kDtypes> kDtypeSizes = {1, 1, 4, 8, 2, 2, 4, 8,
                                                             1, 2, 4, 8, 2, 8, 16};
inline std::size_t size_of(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  RC_ASSERT(index < kDtypeSizes.size());
  return kDtypeSizes[index];
}
std::string_view name_of(Dtype dtype);
std::string_view name_of(ReduceOp op);
std::optional<Dtype> dtype_from(std::string_view name);
std::optional<ReduceOp> reduce_op_from(std::string_view name);
bool is_reducible(Dtype dtype);
bool is_integer(Dtype dtype);
bool is_16_bit_float(Dtype dtype);

}  // namespace rdmacoll
