// The device kernels give the bits of the processor's kernels.
#include "unit/cuda_kernels.h"

#include "base/text.h"
#include "sanitized.h"

namespace rdmacoll::cuda {
namespace {

using namespace kernels_test;  // NOLINT: written for this file

const unsigned kTurns = std::max(seeds(2), 1U);

// A job in random pieces, at random alignments, in place or not.
class RandomJob {
 public:
  RandomJob(Dtype dtype, ReduceOp op, std::size_t n, std::size_t count, bool mixes,
            std::mt19937_64& random)
      : random_(random), element_(size_of(component_of(dtype))) {
    job.dtype = dtype;
    job.op = op;
    job.mixes = mixes;
    alignment_ = random() % 3;
    for (std::size_t i = 0; i < n; ++i) {
      wide.push_back(mixes ? random() % 2 : 0);
      const Dtype own = wide[i] != 0 ? Dtype::float32 : component_of(dtype);
      // The oracle gives minima and maxima no negative zero. These kernels agree on it.
      sources.push_back(
          oracle::random_operand(own, count * size_of(dtype) / element_, ReduceOp::sum, random));
    }
    job.wide = mixes && random() % 2 == 0;
    scale();
    place(count * size_of(dtype) * job.width());
  }

  std::string described() const {
    std::string text = cat(name_of(job.op), " of ", sources.size(), " times ", sources[0].size(),
                           " bytes of ", name_of(job.dtype), " / ", job.divisor, " * ", job.factor,
                           ", ", job.prescale, ", alignment ", alignment_, ", widths");
    for (uint8_t one : wide) text += one != 0 ? " 2" : " 1";
    return cat(text, " to ", job.width());
  }

  ComputeJob job;
  std::vector<Bytes> sources;
  std::vector<uint8_t> wide;
  DeviceMemory memory;
  std::span<std::byte> result;

 private:
  void scale() {
    constexpr double kDivisors[] = {1, 1, 4, 3, 0x1p-110, 0x1p110, 1 + 0x1p-40};
    constexpr double kFactors[] = {1, 1, 1, 0.3, -1.75, 0x1p-120};
    job.divisor = kDivisors[random_() % std::size(kDivisors)];
    job.factor = kFactors[random_() % std::size(kFactors)];
    if (job.mixes && random_() % 2 == 0) job.prescale = 1.0 / 3;
    if (job.wide) job.divisor = job.factor = 1;
  }

  std::size_t shift() {
    if (alignment_ == 0) return 0;
    return random_() % 17 * (alignment_ == 1 ? element_ * 2 : 1);
  }

  void place(std::size_t result_bytes) {
    const bool in_place = random_() % 3 == 0;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto placed = memory.allocate(sources[i], shift());
      cuts_.push_back(pieces_of(placed, wide[i] != 0 ? 4 : element_));
      if (in_place && result.empty() && placed.size() == result_bytes &&
          wide[i] == static_cast<uint8_t>(job.wide)) {
        result = placed;
      }
    }
    if (result.empty()) result = memory.allocate(Bytes(result_bytes, std::byte{0x77}), shift());
    to_ = pieces_of(result, job.wide ? 4 : element_);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      operands_.push_back({.pieces = cuts_[i], .wide = wide[i] != 0});
    }
    job.to = to_;
    job.sources = operands_;
  }

  std::vector<Piece> pieces_of(std::span<std::byte> memory, std::size_t unit) {
    if (random_() % 4 == 0) return {{memory.data(), memory.size()}};
    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < memory.size();) {
      const std::size_t left = (memory.size() - at) / unit;
      const std::size_t most = random_() % 2 == 0 ? left : 200;
      const std::size_t length = std::min<std::size_t>(left, random_() % (most + 1)) * unit;
      pieces.push_back({memory.data() + at, length});
      at += length;
    }
    return pieces;
  }

  std::mt19937_64& random_;
  const std::size_t element_;
  std::size_t alignment_ = 0;  // 0: full, 1: of elements, 2: none
  std::vector<std::vector<Piece>> cuts_;
  std::vector<Piece> to_;
  std::vector<Operand> operands_;
};

void compare(Dtype dtype, ReduceOp op, bool mixes, std::mt19937_64& random) {
  for (const std::size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 33, 259}) {
    const std::size_t kCounts[] = {1, 1 + random() % 40, 300 + random() % 400,
                                   1000 + random() % 8000};
    for (const std::size_t count : kCounts) {
      if (count * n > 30'000) continue;
      RandomJob one(dtype, op, n, count, mixes, random);
      const Bytes right = expected(one.job, one.sources, one.wide, one.result.size());
      const unsigned multiprocessors = 1 + random() % 3;
      ASSERT_EQ(launch(one.job, multiprocessors, one.memory), Played::done) << one.described();
      ASSERT_TRUE(std::equal(right.begin(), right.end(), one.result.begin())) << one.described();
      ASSERT_TRUE(one.memory.are_guards_intact()) << one.described();
    }
  }
}

TEST(CudaKernels, have_the_processor_s_bits_for_all_dtypes_operators_sources_and_pieces) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    for (int d = 0; d < kDtypes; ++d) {
      for (const ReduceOp op : oracle::kOps) {
        const auto dtype = static_cast<Dtype>(d);
        if (!is_reducible(dtype, op)) continue;
        compare(dtype, op, false, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaKernels, have_the_processor_s_bits_for_operands_of_both_widths) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
      for (const ReduceOp op : oracle::kOps) {
        compare(dtype, op, true, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace rdmacoll::cuda
