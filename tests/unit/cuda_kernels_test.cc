// The device kernels give the bits of the processor's kernels.
#include "unit/cuda_kernels.h"

#include "base/text.h"
#include "sanitized.h"

namespace rdmacoll::cuda {
namespace {

using namespace kernels_test;  // NOLINT: written for this file

const std::size_t kCountMax = seeds(4000);

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
    if (sources.size() > 40 || random_() % 4 == 0) return {{memory.data(), memory.size()}};
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
  for (const std::size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 33, 259, 1023}) {
    const std::size_t kCounts[] = {1, 1 + random() % 40, 300 + random() % 400,
                                   1000 + random() % kCountMax};
    for (const std::size_t count : kCounts) {
      if (count * n > 15'000) continue;
      RandomJob one(dtype, op, n, count, mixes, random);
      const Bytes right = expected(one.job, one.sources, one.wide, one.result.size());
      const unsigned multiprocessors = 1 + random() % 3;
      ASSERT_EQ(launch(one.job, multiprocessors, one.memory), Emulated::done) << one.described();
      ASSERT_TRUE(std::equal(right.begin(), right.end(), one.result.begin())) << one.described();
      ASSERT_TRUE(one.memory.are_guards_intact()) << one.described();
    }
  }
}

TEST(CudaKernels, have_the_processor_s_bits_for_all_dtypes_operators_sources_and_pieces) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int d = 0; d < kDtypes; ++d) {
    for (const ReduceOp op : oracle::kOps) {
      const auto dtype = static_cast<Dtype>(d);
      if (!is_reducible(dtype, op)) continue;
      compare(dtype, op, false, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaKernels, have_the_processor_s_bits_for_operands_of_both_widths) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 2; ++turn) {
    for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
      for (const ReduceOp op : oracle::kOps) {
        compare(dtype, op, true, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaKernels, copy_every_bit_at_every_alignment) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (std::size_t to_shift = 0; to_shift < 17; ++to_shift) {
    for (std::size_t from_shift = 0; from_shift < 17; ++from_shift) {
      DeviceMemory memory;
      Bytes content(random() % 6000);
      for (std::byte& byte : content) byte = static_cast<std::byte>(random());
      const auto from = memory.allocate(content, from_shift);
      const auto to = memory.allocate(Bytes(content.size()), to_shift);
      const Piece to_piece{to.data(), to.size()};
      const Piece from_piece{from.data(), from.size()};
      const Operand source{.pieces = {&from_piece, 1}};
      const ComputeJob job{.dtype = Dtype::float32, .to = {&to_piece, 1}, .sources = {&source, 1}};
      ASSERT_EQ(launch(job, 1, memory), Emulated::done);
      ASSERT_TRUE(std::equal(content.begin(), content.end(), to.begin()))
          << content.size() << " bytes from " << from_shift << " to " << to_shift;
      ASSERT_TRUE(memory.are_guards_intact());
    }
  }
}

// Many tensors, as a fused batch packs and unpacks them.
TEST(CudaKernels, pack_and_unpack_many_pieces_in_one_launch) {
  std::mt19937_64 random(7);
  DeviceMemory memory;
  Bytes packed;
  std::vector<Piece> pieces;
  for (int i = 0; i < 161; ++i) {
    Bytes content(2 * (random() % 300));
    for (std::byte& byte : content) byte = static_cast<std::byte>(random());
    packed.insert(packed.end(), content.begin(), content.end());
    const auto placed = memory.allocate(content, 2 * (random() % 9));
    pieces.push_back({placed.data(), placed.size()});
  }
  const auto whole = memory.allocate(Bytes(packed.size()), 0);
  const Piece piece{whole.data(), whole.size()};
  const Operand scattered{.pieces = pieces}, gathered{.pieces = {&piece, 1}};
  const ComputeJob pack{.dtype = Dtype::float16, .to = {&piece, 1}, .sources = {&scattered, 1}};
  ASSERT_EQ(launch(pack, 1, memory), Emulated::done);
  EXPECT_TRUE(std::equal(packed.begin(), packed.end(), whole.begin()));
  for (const Piece& one : pieces) std::fill_n(one.data, one.bytes, std::byte{});
  const ComputeJob unpack{.dtype = Dtype::float16, .to = pieces, .sources = {&gathered, 1}};
  ASSERT_EQ(launch(unpack, 2, memory), Emulated::done);
  std::size_t at = 0;
  for (const Piece& one : pieces) {
    EXPECT_TRUE(std::equal(one.data, one.data + one.bytes, packed.data() + at));
    at += one.bytes;
  }
  EXPECT_TRUE(memory.are_guards_intact());
}

// A launch of `sources` operands of `bytes` bytes each, in one piece.
Status prepare(std::size_t sources, std::size_t bytes, Launch& launch) {
  static std::byte memory[256];
  const Piece piece{memory, bytes};
  const std::vector<Operand> operands(sources, {.pieces = {&piece, 1}});
  LaunchPlanner planner(2, nullptr);
  return planner.prepare({.dtype = Dtype::float32, .to = {&piece, 1}, .sources = operands}, launch);
}

TEST(CudaKernels, are_planned_by_the_size_of_the_job) {
  Launch launch;
  ASSERT_TRUE(prepare(2, 0, launch).ok());
  EXPECT_EQ(launch.blocks, 0U);
  ASSERT_TRUE(prepare(2, 256, launch).ok());
  EXPECT_EQ(launch.blocks, 1U);
  EXPECT_EQ(kernels()[launch.kernel].name, "sum_float32");
  EXPECT_TRUE(launch.table.empty());
  EXPECT_EQ(launch.parameters.rows, 1U);
  ASSERT_TRUE(prepare(kUnitSourcesMax + 1, 256, launch).ok());
  EXPECT_EQ(kernels()[launch.kernel].name, "reduce_float32");
  ASSERT_TRUE(prepare(kInlineWords, 256, launch).ok());
  EXPECT_EQ(launch.table.size(), kRowHead + kInlineWords);
  ASSERT_TRUE(prepare(kSourcesMax, 256, launch).ok());
  EXPECT_EQ(prepare(kSourcesMax + 1, 256, launch).message(),
            "a reduction on a GPU has 1024 sources, more than 1023.");
}

TEST(CudaKernels, refuse_a_piece_that_ends_inside_an_element) {
  static std::byte memory[64];
  const Piece whole{memory, 16};
  const Piece cut[] = {{memory, 6}, {memory + 32, 10}};
  const Operand sources[] = {{.pieces = {&whole, 1}}, {.pieces = cut}};
  LaunchPlanner planner(1, nullptr);
  Launch launch;
  const ComputeJob job{.dtype = Dtype::float32, .to = {&whole, 1}, .sources = sources};
  EXPECT_EQ(planner.prepare(job, launch).message(),
            "a piece of a reduction on a GPU ends inside an element.");
}

TEST(CudaKernels, write_a_word) {
  DeviceMemory memory;
  const auto word = memory.allocate(Bytes(4), 4);
  WriteWordParameters parameters{memory.of(word.data()), 0x12345678};
  void* arguments[] = {&parameters};
  const std::string_view name = kernels()[write_word_kernel()].name;
  ASSERT_EQ(emulate(name, 1, 1, arguments, memory), Emulated::done);
  EXPECT_EQ(std::to_integer<int>(word[0]), 0x78);
  EXPECT_EQ(std::to_integer<int>(word[3]), 0x12);
  EXPECT_TRUE(memory.are_guards_intact());
}

// As the driver finds them on a card, later and with less to say.
TEST(CudaKernels, played_with_wrong_arguments_fault_before_they_write) {
  DeviceMemory memory;
  const auto to = memory.allocate(Bytes(64), 0);
  const auto from = memory.allocate(Bytes(64, std::byte{1}), 0);
  const Piece to_piece{to.data(), 64};
  const Piece from_piece{from.data(), 80};  // past the end of its memory
  const Piece too_long{to.data(), 80};
  const Operand source{.pieces = {&from_piece, 1}};
  ComputeJob job{.dtype = Dtype::int32, .to = {&too_long, 1}, .sources = {&source, 1}};
  EXPECT_EQ(launch(job, 1, memory), Emulated::fault);
  EXPECT_EQ(std::to_integer<int>(to[0]), 0);
  LaunchPlanner planner(1, &memory);
  Launch launch;
  job.to = {&to_piece, 1};
  const Piece right{from.data(), 64};
  const Operand right_source{.pieces = {&right, 1}};
  job.sources = {&right_source, 1};
  ASSERT_TRUE(planner.prepare(job, launch).ok());
  void* parameters[] = {&launch.parameters};
  EXPECT_EQ(emulate("sum_float128", 1, kThreads, parameters, memory), Emulated::unknown_kernel);
  EXPECT_EQ(emulate("copy_bytes", 1, kThreads / 2, parameters, memory), Emulated::wrong_block);
}

TEST(CudaKernels, come_with_ptx_of_their_name) {
  for (const Kernel& kernel : kernels()) {
    const std::string_view ptx = kernel.ptx;
    EXPECT_NE(ptx.find(".entry " + std::string(kernel.name) + "("), ptx.npos) << kernel.name;
    EXPECT_TRUE(ptx.starts_with(".version 6.0\n.target sm_35\n")) << kernel.name;
    EXPECT_LT(ptx.size(), 80'000U) << kernel.name;
  }
}

}  // namespace
}  // namespace rdmacoll::cuda
