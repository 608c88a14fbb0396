#include "base/dtype.h"

#include <gtest/gtest.h>

namespace rdmacoll {
namespace {

TEST(Dtype, numbers_and_sizes_are_those_of_the_c_abi) {
  const std::pair<const char*, std::size_t> kByNumber[kDtypes] = {
      {"uint8", 1},    {"int8", 1},    {"int32", 4},   {"int64", 8},     {"float16", 2},
      {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"bool", 1},      {"uint16", 2},
      {"uint32", 4},   {"uint64", 8},  {"int16", 2},   {"complex64", 8}, {"complex128", 16}};
  for (int i = 0; i < kDtypes; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(name_of(dtype), kByNumber[i].first);
    EXPECT_EQ(size_of(dtype), kByNumber[i].second) << name_of(dtype);
    EXPECT_EQ(dtype_from(name_of(dtype)), dtype);
    EXPECT_EQ(is_reducible(dtype, ReduceOp::sum), dtype != Dtype::boolean) << name_of(dtype);
  }
}

TEST(Dtype, booleans_have_and_and_or_and_no_sum) {
  for (int i = 0; i < kReduceOps; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    EXPECT_EQ(is_reducible(Dtype::boolean, op), op == ReduceOp::min || op == ReduceOp::max);
    EXPECT_TRUE(is_reducible(Dtype::uint8, op));
    EXPECT_TRUE(is_reducible(Dtype::uint16, op));
    EXPECT_EQ(is_reducible(Dtype::complex64, op), op == ReduceOp::sum || op == ReduceOp::average);
  }
}

TEST(Dtype, operators_have_names) {
  const char* kByNumber[kReduceOps] = {"sum", "average", "min", "max", "product"};
  for (int i = 0; i < kReduceOps; ++i) {
    EXPECT_EQ(name_of(static_cast<ReduceOp>(i)), kByNumber[i]);
  }
}

TEST(Dtype, unknown_names_are_refused) {
  EXPECT_FALSE(dtype_from("float8").has_value());
  EXPECT_FALSE(dtype_from("").has_value());
}

TEST(Dtype, kinds) {
  EXPECT_TRUE(is_integer(Dtype::uint8));
  EXPECT_TRUE(is_integer(Dtype::uint64));
  EXPECT_FALSE(is_integer(Dtype::boolean));
  EXPECT_FALSE(is_integer(Dtype::float16));
  EXPECT_FALSE(is_integer(Dtype::complex64));
  EXPECT_TRUE(is_16_bit_float(Dtype::bfloat16));
  EXPECT_TRUE(is_16_bit_float(Dtype::float16));
  EXPECT_FALSE(is_16_bit_float(Dtype::uint16));
  EXPECT_EQ(component_of(Dtype::complex64), Dtype::float32);
  EXPECT_EQ(component_of(Dtype::complex128), Dtype::float64);
  EXPECT_EQ(component_of(Dtype::uint16), Dtype::uint16);
}

}  // namespace
}  // namespace rdmacoll
