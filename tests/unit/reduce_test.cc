#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>

#include "compute/reduce_kernels.h"
#include "unit/reduce_oracle.h"

namespace rdmacoll {
namespace {

using oracle::Bytes;

// A result between guard bytes, which show a store outside of it. It begins `shift` bytes off the
// alignment of the allocation.
class Guarded {
 public:
  Guarded(const Bytes& content, std::size_t shift)
      : bytes_(content.size() + shift + 2 * kGuard, kMark), shift_(shift), size_(content.size()) {
    std::copy(content.begin(), content.end(), data());
  }
  std::byte* data() { return bytes_.data() + kGuard + shift_; }
  Bytes content() { return {data(), data() + size_}; }
  bool is_intact() const {
    const auto is_mark = [](std::byte byte) { return byte == kMark; };
    const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(kGuard + shift_);
    return std::all_of(bytes_.begin(), first, is_mark) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(size_), bytes_.end(), is_mark);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xa5};
  std::vector<std::byte> bytes_;
  std::size_t shift_;
  std::size_t size_;
};

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Bytes run(const KernelTable& table, Dtype dtype, ReduceOp op, const std::vector<Bytes>& sources,
          const Scaling& scaling = {}) {
  Bytes result(sources[0].size());
  std::vector<const void*> addresses;
  for (const Bytes& source : sources) addresses.push_back(source.data());
  table.kernels[static_cast<int>(dtype)][static_cast<int>(op)](
      result.data(), addresses.data(), addresses.size(), result.size() / size_of(dtype), scaling);
  return result;
}

template <typename T>
std::vector<T> run(const KernelTable& table, Dtype dtype, ReduceOp op,
                   const std::vector<std::vector<T>>& sources, const Scaling& scaling = {}) {
  std::vector<Bytes> raw;
  for (const auto& source : sources) raw.push_back(bytes_of(source));
  return values_of<T>(run(table, dtype, op, raw, scaling));
}

class Reduce : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& table() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(InstructionSets, Reduce, ::testing::ValuesIn(usable_kernels()),
                         [](const auto& info) { return std::string(info.param->instruction_set); });

// All tables against one oracle, bit by bit: hence against each other.
TEST_P(Reduce, equals_the_oracle_for_all_dtypes_operators_lengths_and_alignments) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  const Scaling kScalings[] = {{1, 1}, {4, 1}, {3, 1}, {1, 0.3}, {5, -1.75}};
  for (int d = 0; d < kDtypes; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    if (!is_reducible(dtype, ReduceOp::product)) continue;
    for (ReduceOp op : oracle::kOps) {
      for (std::size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13}) {
        const std::size_t kCounts[] = {0, 1, 7, 31, 255, 256, 257, 300 + random() % 400};
        for (std::size_t count : kCounts) {
          std::vector<Bytes> sources;
          std::vector<Guarded> operands;
          std::vector<const void*> addresses;
          operands.reserve(n);
          for (std::size_t i = 0; i < n; ++i) {
            sources.push_back(oracle::random_operand(dtype, count, op, random));
            operands.emplace_back(sources[i], random() % 9 * size_of(dtype));
            addresses.push_back(operands[i].data());
          }
          const Scaling& scaling = kScalings[random() % std::size(kScalings)];
          const Bytes expected =
              oracle::reduce(dtype, op, sources, scaling.divisor, scaling.factor);
          Guarded apart(Bytes(expected.size()), random() % 9 * size_of(dtype));
          const ReduceKernel kernel = table().kernels[kernel_row(dtype)][static_cast<int>(op)];
          kernel(apart.data(), addresses.data(), n, count, scaling);
          const auto what = ::testing::Message()
                            << "seed " << seed << ": " << name_of(op) << " of " << n << " times "
                            << count << " " << name_of(dtype) << " / " << scaling.divisor << " * "
                            << scaling.factor;
          ASSERT_EQ(apart.content(), expected) << what;
          ASSERT_TRUE(apart.is_intact()) << what;
          Guarded& in_place = operands[random() % n];
          kernel(in_place.data(), addresses.data(), n, count, scaling);
          ASSERT_EQ(in_place.content(), expected) << what << ", in place";
          ASSERT_TRUE(in_place.is_intact()) << what << ", in place";
        }
      }
    }
  }
}

TEST_P(Reduce, adds_in_the_canonical_tree) {
  // Powers of two so far apart that each shape of the tree rounds differently.
  const float big = 0x1p24F;
  const auto sum = [&](std::vector<float> values) {
    std::vector<std::vector<float>> sources;
    for (float value : values) sources.push_back(std::vector<float>(40, value));
    return run(table(), Dtype::float32, ReduceOp::sum, sources)[39];
  };
  EXPECT_EQ(sum({big, 1, 1}), big);               // (a+b)+c, not a+(b+c) = big + 2
  EXPECT_EQ(sum({big, 1, 1, 1}), big + 2);        // (a+b)+(c+d)
  EXPECT_EQ(sum({1, 1, big, 1, 0}), big + 2);     // ((a+b)+(c+d))+e
  EXPECT_EQ(sum({1, 1, 0, 0, big, 1}), big + 2);  // ((a+b)+(c+d))+(e+f)
  EXPECT_EQ(sum({0, 0, 0, 0, big, 1, 1}), big);   // left four, then (e+f)+g
}

TEST_P(Reduce, keeps_16_bit_floats_wide_and_rounds_once) {
  // 256 + 1 does not fit in 8 digits. Rounding after each step would lose all ones.
  const uint16_t one = oracle::encode(oracle::kBfloat16, 1);
  const uint16_t big = oracle::encode(oracle::kBfloat16, 256);
  const std::vector<std::vector<uint16_t>> sources = {{big}, {one}, {one}, {one}, {one}};
  const auto raw = run(table(), Dtype::bfloat16, ReduceOp::sum, sources)[0];
  EXPECT_EQ(oracle::decode(oracle::kBfloat16, raw), 260.0F);
  // The quotient is formed before rounding, too: 65504 * 2 / 2 does not overflow.
  const std::vector<std::vector<uint16_t>> most = {{0x7bff}, {0x7bff}};
  EXPECT_EQ(run(table(), Dtype::float16, ReduceOp::sum, most, {2, 1})[0], 0x7bff);
  EXPECT_EQ(run(table(), Dtype::float16, ReduceOp::sum, most)[0], 0x7c00);
}

TEST_P(Reduce, every_16_bit_float_survives_widening_and_rounding) {
  for (const auto& [dtype, format] : {std::pair(Dtype::float16, oracle::kFloat16),
                                      std::pair(Dtype::bfloat16, oracle::kBfloat16)}) {
    std::vector<uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    const auto result = run<uint16_t>(table(), dtype, ReduceOp::max, {all, all});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float value = oracle::decode(format, all[i]);
      const uint16_t expected = std::isnan(value) ? oracle::encode(format, value) : all[i];
      ASSERT_EQ(result[i], expected) << name_of(dtype) << " " << i;
    }
  }
}

TEST_P(Reduce, rounds_to_nearest_even) {
  const auto sum = [&](Dtype dtype, oracle::Format format, float a, float b) {
    const std::vector<std::vector<uint16_t>> sources = {
        std::vector<uint16_t>(9, oracle::encode(format, a)),
        std::vector<uint16_t>(9, oracle::encode(format, b))};
    const auto result = run(table(), dtype, ReduceOp::sum, sources);
    EXPECT_EQ(result.front(), result.back());  // the vector part and the tail
    return oracle::decode(format, result[0]);
  };
  EXPECT_EQ(sum(Dtype::float16, oracle::kFloat16, 2048, 1), 2048.0F);
  EXPECT_EQ(sum(Dtype::float16, oracle::kFloat16, 2048, 3), 2052.0F);
  EXPECT_EQ(sum(Dtype::float16, oracle::kFloat16, 65504, 15), 65504.0F);
  EXPECT_EQ(sum(Dtype::float16, oracle::kFloat16, 65504, 16),
            std::numeric_limits<float>::infinity());
  EXPECT_EQ(sum(Dtype::float16, oracle::kFloat16, 0x1p-24F, 0x1p-24F), 0x1p-23F);  // denormals
  EXPECT_EQ(sum(Dtype::bfloat16, oracle::kBfloat16, 256, 1), 256.0F);
  EXPECT_EQ(sum(Dtype::bfloat16, oracle::kBfloat16, 256, 3), 260.0F);
}

TEST_P(Reduce, a_nan_wins_wherever_it_stands) {
  const float kNans[] = {std::bit_cast<float>(0x7fc00000U), std::bit_cast<float>(0xffc12345U),
                         std::bit_cast<float>(0x7f800001U)};
  for (ReduceOp op : oracle::kOps) {
    for (std::size_t n : {2, 3, 4, 5, 8}) {
      for (std::size_t where = 0; where < n; ++where) {
        for (float nan : kNans) {
          std::vector<std::vector<float>> sources(n, std::vector<float>(17, 1.5F));
          sources[where] = std::vector<float>(17, nan);
          for (float value : run(table(), Dtype::float32, op, sources)) {
            ASSERT_EQ(std::bit_cast<uint32_t>(value), 0x7fc00000U)
                << name_of(op) << ", NaN at " << where << " of " << n;
          }
        }
      }
    }
  }
}

TEST_P(Reduce, integers_wrap) {
  const auto last = [&]<typename T>(Dtype dtype, ReduceOp op, T a, T b) {
    const std::vector<std::vector<T>> sources = {std::vector<T>(37, a), std::vector<T>(37, b)};
    return run(table(), dtype, op, sources)[36];
  };
  EXPECT_EQ((last.operator()<uint8_t>(Dtype::uint8, ReduceOp::sum, 200, 100)), 44);
  EXPECT_EQ((last.operator()<int8_t>(Dtype::int8, ReduceOp::sum, 127, 1)), -128);
  EXPECT_EQ((last.operator()<int8_t>(Dtype::int8, ReduceOp::product, -128, -1)), -128);
  EXPECT_EQ((last.operator()<int32_t>(Dtype::int32, ReduceOp::sum, INT32_MAX, 1)), INT32_MIN);
  EXPECT_EQ((last.operator()<int32_t>(Dtype::int32, ReduceOp::product, 65536, 65537)), 65536);
  EXPECT_EQ((last.operator()<int64_t>(Dtype::int64, ReduceOp::sum, INT64_MIN, -1)), INT64_MAX);
  EXPECT_EQ((last.operator()<int64_t>(Dtype::int64, ReduceOp::product, INT64_MAX, 2)), -2);
}

TEST_P(Reduce, scaled_integers_are_truncated_toward_zero_and_kept_in_range) {
  const auto scale = [&](Dtype dtype, std::vector<int32_t> values, double factor) {
    return run<int32_t>(table(), dtype, ReduceOp::sum, {values}, {1, factor});
  };
  EXPECT_EQ(scale(Dtype::int32, {7, -7, 1, -1, 0}, 0.5), (std::vector<int32_t>{3, -3, 0, 0, 0}));
  EXPECT_EQ(scale(Dtype::int32, {INT32_MAX, INT32_MIN, 3}, 2.0),
            (std::vector<int32_t>{INT32_MAX, INT32_MIN, 6}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(scale(Dtype::int32, {5, -5}, nan), (std::vector<int32_t>{0, 0}));
  const auto wide = run<int64_t>(table(), Dtype::int64, ReduceOp::sum,
                                 {{INT64_MAX, INT64_MIN, 10, -10}}, {1, 1.5});
  EXPECT_EQ(wide, (std::vector<int64_t>{INT64_MAX, INT64_MIN, 15, -15}));
  const auto tiny = run<uint8_t>(table(), Dtype::uint8, ReduceOp::sum, {{200, 3}}, {1, -1.0});
  EXPECT_EQ(tiny, (std::vector<uint8_t>{0, 0}));
}

TEST_P(Reduce, an_average_of_equal_values_is_that_value) {
  for (std::size_t n : {2, 3, 5, 7, 8}) {
    const std::vector<std::vector<float>> sources(n, std::vector<float>(100, 0.5F));
    const auto result =
        run(table(), Dtype::float32, ReduceOp::sum, sources, {static_cast<double>(n), 1});
    EXPECT_EQ(result, sources[0]) << n;
  }
}

TEST(ReduceTables, the_best_one_is_chosen_and_knows_every_pair) {
  ASSERT_FALSE(usable_kernels().empty());
  for (const KernelTable* table : usable_kernels()) {
    for (const auto& row : table->kernels) {
      for (ReduceKernel kernel : row) EXPECT_NE(kernel, nullptr);
    }
  }
  EXPECT_EQ(reduce_kernel(Dtype::float32, ReduceOp::sum),
            usable_kernels().back()->kernels[static_cast<int>(Dtype::float32)][0]);
}

TEST(ReduceTables, booleans_are_anded_and_ored) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    const uint8_t a[] = {0, 0, 1, 1}, b[] = {0, 1, 0, 1};
    uint8_t result[4];
    const void* const sources[] = {a, b};
    reduce_kernel(Dtype::boolean, op)(result, sources, 2, 4, {});
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(result[i], op == ReduceOp::min ? a[i] & b[i] : a[i] | b[i]);
    }
  }
}

TEST(ReduceTablesDeathTest, what_is_only_moved_has_no_kernel) {
  EXPECT_DEATH(reduce_kernel(Dtype::boolean, ReduceOp::sum), "sum of bool");
  EXPECT_DEATH(reduce_kernel(Dtype::complex64, ReduceOp::max), "max of complex64");
  EXPECT_DEATH(reduce_kernel(Dtype::complex64, ReduceOp::sum), "complex64");
}

}  // namespace
}  // namespace rdmacoll
