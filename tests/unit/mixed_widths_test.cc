// Jobs of 16-bit floats. Some operands, or the result, are sums in float32.
#include <gtest/gtest.h>

#include <random>

#include "compute/job.h"
#include "compute/reduce_kernels.h"
#include "memory/streaming.h"
#include "unit/compute_fixture.h"
#include "unit/reduce_oracle.h"

namespace rdmacoll {
namespace {

using oracle::Bytes;
using namespace compute_test;  // NOLINT: the fixture, written for these files

constexpr Dtype kNarrow[] = {Dtype::float16, Dtype::bfloat16};

const oracle::Format& format_of(Dtype dtype) {
  return dtype == Dtype::float16 ? oracle::kFloat16 : oracle::kBfloat16;
}

Bytes widened(Dtype dtype, const Bytes& narrow) {
  Bytes wide(narrow.size() * 2);
  for (std::size_t i = 0; i < narrow.size() / 2; ++i) {
    uint16_t raw = 0;
    std::memcpy(&raw, narrow.data() + 2 * i, 2);
    const float value = oracle::decode(format_of(dtype), raw);
    std::memcpy(wide.data() + 4 * i, &value, 4);
  }
  return wide;
}

Bytes narrowed(Dtype dtype, const Bytes& wide) {
  Bytes narrow(wide.size() / 2);
  for (std::size_t i = 0; i < wide.size() / 4; ++i) {
    float value = 0;
    std::memcpy(&value, wide.data() + 4 * i, 4);
    const uint16_t raw = oracle::encode(format_of(dtype), value);
    std::memcpy(narrow.data() + 2 * i, &raw, 2);
  }
  return narrow;
}

// The operands of a job and its expected result. The result is computed in float32 and rounded at
// the end.
struct Mixed {
  std::vector<Bytes> sources;
  std::vector<uint8_t> wide;
  bool to_wide = false;
  double divisor = 1, factor = 1, prescale = 1;
  Bytes expected;

  Mixed(Dtype dtype, ReduceOp op, std::size_t n, std::size_t count, std::mt19937_64& random) {
    std::vector<Bytes> all;
    if (random() % 2 == 0) prescale = 1.0 / 3;
    for (std::size_t i = 0; i < n; ++i) {
      wide.push_back(random() % 2);
      sources.push_back(
          oracle::random_operand(wide[i] != 0 ? Dtype::float32 : dtype, count, op, random));
      all.push_back(wide[i] != 0 ? sources[i] : scaled(widened(dtype, sources[i])));
    }
    to_wide = random() % 2 == 0;
    if (!to_wide && random() % 2 == 0) divisor = static_cast<double>(n + 1);
    if (!to_wide && random() % 3 == 0) factor = 0.3;
    expected = oracle::reduce(Dtype::float32, op, all, divisor, factor);
    if (!to_wide) expected = narrowed(dtype, expected);
  }

  // A narrow operand is multiplied by `prescale` first, in float32.
  Bytes scaled(Bytes values) const {
    for (std::size_t at = 0; prescale != 1 && at < values.size(); at += 4) {
      float value = 0;
      std::memcpy(&value, values.data() + at, 4);
      value *= static_cast<float>(prescale);
      std::memcpy(values.data() + at, &value, 4);
    }
    return values;
  }
};

TEST(MixedWidths, equal_the_oracle_in_all_instruction_sets) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (const KernelTable* table : usable_kernels()) {
    for (const Dtype dtype : kNarrow) {
      for (const ReduceOp op : oracle::kOps) {
        for (const std::size_t n : {1, 2, 3, 4, 5, 9}) {
          for (const std::size_t count : {0, 1, 31, 256, 257, 700}) {
            const Mixed mixed(dtype, op, n, count, random);
            std::vector<const void*> addresses;
            for (const Bytes& source : mixed.sources) addresses.push_back(source.data());
            Bytes result(mixed.expected.size() + 1, std::byte{0xa5});
            const auto row = static_cast<int>(dtype) - static_cast<int>(Dtype::float16);
            table->mixed[row][static_cast<int>(op)](result.data(), addresses.data(), n, count,
                                                    {mixed.divisor, mixed.factor, mixed.prescale},
                                                    {mixed.wide.data(), mixed.to_wide});
            ASSERT_EQ(result.back(), std::byte{0xa5});
            result.pop_back();
            ASSERT_EQ(result, mixed.expected)
                << "seed " << seed << ", " << table->instruction_set << ": " << name_of(op)
                << " of " << n << " times " << count << " " << name_of(dtype);
          }
        }
      }
    }
  }
}

TEST_P(ComputeTest, reduces_operands_of_both_widths_wherever_they_lie) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  const Neighbour neighbour;
  for (int turn = 0; turn < 100; ++turn) {
    const Dtype dtype = kNarrow[random() % 2];
    const ReduceOp op = oracle::kOps[random() % 4];
    const std::size_t n = 1 + random() % 5;
    std::size_t count = turn % 10 == 0 ? random() % 200'000 : random() % 3000;
    if (turn % 25 == 0) count = kStreamedBytesMin / 2 + random() % 20'000;
    const Mixed mixed(dtype, op, n, count, random);
    Case c;
    c.sources = mixed.sources;
    for (std::size_t i = 0; i < n; ++i) {
      c.add(static_cast<Place>(random() % 4), mixed.wide[i] != 0 ? 4 : 2, neighbour, random);
    }
    c.result.resize(mixed.expected.size());
    c.to = cut(c.result, mixed.to_wide ? 4 : 2, random);
    c.finish(dtype, op);
    for (std::size_t i = 0; i < n; ++i) c.operands[i].wide = mixed.wide[i] != 0;
    c.job.divisor = mixed.divisor;
    c.job.factor = mixed.factor;
    c.job.prescale = mixed.prescale;
    c.job.wide = mixed.to_wide;
    c.job.mixes = true;
    const Status status = run(c.job);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ", turn " << turn << ": " << status.message();
    ASSERT_EQ(c.result, mixed.expected) << "seed " << seed << ", turn " << turn;
  }
}

// A peer may have announced wrong pieces.
TEST_P(ComputeTest, refuses_a_wide_operand_of_another_size_or_cut_inside_an_element) {
  std::mt19937_64 random(3);
  const Neighbour neighbour;
  for (const std::vector<std::size_t>& cuts :
       std::vector<std::vector<std::size_t>>{{396}, {200, 200}, {2, 398}, {1, 399}, {399, 1}}) {
    Case c;
    c.sources = {Bytes(400), Bytes(200)};
    c.add(Place::mapped, 4, neighbour, random);
    c.add(Place::local, 2, neighbour, random);
    c.remote[0].clear();
    std::size_t at = 0;
    for (const std::size_t bytes : cuts) {
      c.remote[0].push_back({c.sources[0].data() + at, 0, bytes});
      at += bytes;
    }
    c.result.resize(200);
    c.to = cut(c.result, 2, random);
    c.finish(Dtype::bfloat16, ReduceOp::sum);
    c.operands[0].wide = c.job.mixes = true;
    const Status status = run(c.job);
    EXPECT_EQ(status.ok(), cuts[0] == 200) << cuts[0] << ": " << status.message();
  }
}

}  // namespace
}  // namespace rdmacoll
