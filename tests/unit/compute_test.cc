// Jobs over mapped and read pieces, on each backend: inline, one worker, three workers.
#include "compute/compute.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>

#include "compute/float_mode.h"
#include "compute/inline.h"
#include "compute/job.h"
#include "compute/workers.h"
#include "memory/streaming.h"
#include "unit/compute_fixture.h"
#include "unit/reduce_oracle.h"

namespace rdmacoll {
namespace {

using oracle::Bytes;
using namespace compute_test;  // NOLINT: the fixture, written for these files

INSTANTIATE_TEST_SUITE_P(Who, ComputeTest, ::testing::ValuesIn(all_makers()), name_of_maker);

TEST_P(ComputeTest, reduces_operands_that_are_cut_differently_wherever_they_lie) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  const Neighbour neighbour;
  for (int turn = 0; turn < 150; ++turn) {
    const auto dtype = static_cast<Dtype>(random() % 8);
    const ReduceOp op = oracle::kOps[random() % 4];
    const std::size_t n = 1 + random() % 6;
    std::size_t count = turn % 10 == 0 ? random() % 100'000 : random() % 3000;
    // So large that the result is streamed.
    if (turn % 25 == 0) count = kStreamedBytesMin / size_of(dtype) + random() % 20'000;
    Case c;
    for (std::size_t i = 0; i < n; ++i) {
      c.sources.push_back(oracle::random_operand(dtype, count, op, random));
    }
    const double divisor = random() % 2 == 0 ? 1.0 : static_cast<double>(n);
    const double factor = random() % 3 == 0 ? 0.25 : 1.0;
    const bool is_copy = n == 1 && divisor == 1.0 && factor == 1.0;
    const Bytes expected =
        is_copy ? c.sources[0] : oracle::reduce(dtype, op, c.sources, divisor, factor);
    for (std::size_t i = 0; i < n; ++i) {
      c.add(static_cast<Place>(random() % 4), size_of(dtype), neighbour, random);
    }
    // The result has its own memory, or replaces a local operand.
    c.result.resize(expected.size());
    c.to = cut(c.result, size_of(dtype), random);
    Bytes* target = &c.result;
    if (turn % 2 == 0 && c.remote[0].empty()) {
      target = &c.sources[0];
      c.to = cut(c.sources[0], size_of(dtype), random);
    }
    c.finish(dtype, op);
    c.job.divisor = divisor;
    c.job.factor = factor;
    const Status status = run(c.job);
    const auto what = ::testing::Message()
                      << "seed " << seed << ", turn " << turn << ": " << name_of(op) << " of " << n
                      << " times " << count << " " << name_of(dtype);
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    ASSERT_EQ(*target, expected) << what;
  }
}

TEST_P(ComputeTest, copies_every_dtype_as_it_is) {
  std::mt19937_64 random(1);
  const Neighbour neighbour;
  uint64_t copied = 0;
  for (int d = 0; d < kDtypes; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    Case c;
    c.sources.emplace_back(600 * size_of(dtype));
    for (std::byte& byte : c.sources[0]) byte = static_cast<std::byte>(random());
    c.result.resize(c.sources[0].size());
    c.to = cut(c.result, 1, random);  // a copy may be cut inside an element
    c.add(static_cast<Place>(d % 4), 1, neighbour, random);
    c.finish(dtype, ReduceOp::sum);
    ASSERT_TRUE(run(c.job).ok());
    EXPECT_EQ(c.result, c.sources[0]) << name_of(dtype);
    copied += c.result.size();
    EXPECT_EQ(compute->bytes_copied(), copied);
  }
}

TEST_P(ComputeTest, a_copy_is_read_straight_into_its_destination) {
  const Neighbour neighbour;
  std::mt19937_64 random(1);
  Case c;
  c.sources.emplace_back(std::size_t{96 << 10});
  c.result.resize(96 << 10);
  c.to = {{c.result.data(), c.result.size()}};
  c.add(Place::unmapped, 1, neighbour, random);
  c.finish(Dtype::uint8, ReduceOp::sum);
  ASSERT_TRUE(run(c.job).ok());
  EXPECT_EQ(neighbour.reads, 1);
  EXPECT_EQ(neighbour.largest_read, std::size_t{96 << 10});
}

TEST_P(ComputeTest, a_reduction_reads_a_neighbour_in_pieces_that_stay_in_the_cache) {
  const Neighbour neighbour;
  std::mt19937_64 random(1);
  Case c;
  const std::size_t count = std::size_t{1} << 20;
  for (int i = 0; i < 2; ++i) {
    c.sources.push_back(oracle::random_operand(Dtype::float32, count, ReduceOp::sum, random));
  }
  const Bytes expected = oracle::reduce(Dtype::float32, ReduceOp::sum, c.sources);
  c.to = {{c.sources[0].data(), c.sources[0].size()}};
  c.add(Place::local, 4, neighbour, random);
  c.add(Place::unmapped, 4, neighbour, random);
  c.finish(Dtype::float32, ReduceOp::sum);
  ASSERT_TRUE(run(c.job).ok());
  EXPECT_EQ(c.sources[0], expected);
  // The size follows the processor's second-level cache. A polling thread takes shorter parts.
  EXPECT_GE(neighbour.largest_read, std::size_t{64} << 10);
  EXPECT_LE(neighbour.largest_read, std::size_t{256} << 10);
  EXPECT_LE(neighbour.reads, 4 * count / (64 << 10));
}

TEST_P(ComputeTest, nothing_to_do_is_done) {
  const std::vector<Operand> operands(3);
  EXPECT_TRUE(run({.dtype = Dtype::float32, .sources = operands}).ok());
}

TEST_P(ComputeTest, a_neighbour_that_fails_fails_the_job_once) {
  for (int reads : {0, 1, 12}) {
    Neighbour neighbour;
    neighbour.fail_after = reads;
    std::mt19937_64 random(1);
    Case c;
    for (int i = 0; i < 2; ++i) c.sources.emplace_back(std::size_t{4} << 20);
    c.to = {{c.sources[0].data(), c.sources[0].size()}};
    c.add(Place::local, 4, neighbour, random);
    c.add(Place::unmapped, 4, neighbour, random);
    c.finish(Dtype::float32, ReduceOp::sum);
    c.job.cookie = 9;
    ASSERT_TRUE(compute->submit(c.job).ok());
    Counting sink = wait(1);
    ASSERT_EQ(sink.cookies, std::vector<uint64_t>{9});
    EXPECT_EQ(sink.statuses[0].code(), Code::rank_failed);
    EXPECT_FALSE(compute->poll(sink));
    neighbour.fail_after = std::numeric_limits<int>::max();
    EXPECT_TRUE(run(c.job).ok()) << "the next job is not affected";
  }
}

TEST_P(ComputeTest, refuses_operands_that_a_peer_made_too_short_or_too_long) {
  Bytes mine(400);
  Bytes theirs(400);
  const std::vector<Piece> to = {{mine.data(), mine.size()}};
  for (std::size_t bytes : {0, 396, 404}) {
    const std::vector<RemotePiece> remote = {{theirs.data(), 0, bytes}};
    const std::vector<Operand> operands = {{to, {}, nullptr}, {{}, remote, nullptr}};
    const Status status = run({.dtype = Dtype::float32, .to = to, .sources = operands});
    EXPECT_EQ(status.code(), Code::failed) << bytes;
  }
  // The right number of bytes, cut inside an element.
  const std::vector<RemotePiece> odd = {{theirs.data(), 0, 3}, {theirs.data() + 3, 0, 397}};
  const std::vector<Operand> operands = {{to, {}, nullptr}, {{}, odd, nullptr}};
  EXPECT_EQ(run({.dtype = Dtype::float32, .to = to, .sources = operands}).code(), Code::failed);
  // The memory is not mapped, and no reader is given.
  const std::vector<RemotePiece> far = {{nullptr, 1, 400}};
  const std::vector<Operand> unreadable = {{to, {}, nullptr}, {{}, far, nullptr}};
  EXPECT_EQ(run({.dtype = Dtype::float32, .to = to, .sources = unreadable}).code(), Code::failed);
}

// TensorFlow's threads flush denormals. Sums must not depend on the thread that adds.
TEST_P(ComputeTest, keeps_denormals_on_threads_that_flush_them) {
#if defined(__x86_64__)
  constexpr uint64_t kFlushes = 0x8040;
#else
  constexpr uint64_t kFlushes = 1 << 24;
#endif
  const uint64_t before = FloatRegister::read();
  FloatRegister::write(before | kFlushes);
  compute = make([] {});  // its threads inherit the mode
  const uint32_t denormal = 0x00000005;
  std::vector<uint32_t> value(1000, denormal);
  const Piece piece{reinterpret_cast<std::byte*>(value.data()), 4000};
  const std::vector<Operand> operands(2, Operand{{&piece, 1}, {}, nullptr});
  const Status status = run({.dtype = Dtype::float32, .to = {&piece, 1}, .sources = operands});
  const uint64_t after = FloatRegister::read();
  FloatRegister::write(before);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(value, std::vector<uint32_t>(1000, 2 * denormal));
  EXPECT_EQ(after & kFlushes, kFlushes) << "the thread's own mode comes back";
}

// Offsets beyond 2^31 and 2^32, in memory that is reserved and hardly touched.
TEST(Job, reaches_bytes_far_beyond_two_gigabytes) {
  constexpr std::size_t kBytes = (std::size_t{6} << 30) + 4096;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* a = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  void* b = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  ASSERT_NE(a, MAP_FAILED);
  ASSERT_NE(b, MAP_FAILED);
  auto* mine = static_cast<std::byte*>(a);
  auto* theirs = static_cast<std::byte*>(b);
  const std::size_t last = kBytes / 4 - 1;
  static_cast<float*>(a)[last] = 40.0F;
  static_cast<float*>(b)[last] = 2.0F;
  // Covers one huge piece, a cut above 4 GiB, and a neighbour's memory that has to be read.
  const std::vector<Piece> to = {{mine, kBytes}};
  const std::size_t half = (std::size_t{5} << 30) + 8;
  const std::vector<RemotePiece> remote = {
      {nullptr, reinterpret_cast<uint64_t>(theirs), half},
      {nullptr, reinterpret_cast<uint64_t>(theirs) + half, kBytes - half}};
  const Neighbour neighbour;
  const std::vector<Operand> operands = {{to, {}, nullptr}, {{}, remote, &neighbour}};
  const ComputeJob job{.dtype = Dtype::float32, .to = to, .sources = operands};
  std::size_t bytes = 0;
  ASSERT_TRUE(measure(job, bytes).ok());
  EXPECT_EQ(bytes, kBytes);
  Workspace workspace;
  ASSERT_TRUE(perform(job, kBytes - 8192, 8192, workspace).ok());
  EXPECT_EQ(static_cast<float*>(a)[last], 42.0F);
  ::munmap(a, kBytes);
  ::munmap(b, kBytes);
}

TEST(Job, many_unmapped_operands_share_the_bounce_memory) {
  std::mt19937_64 random(7);
  const Neighbour neighbour;
  Case c;
  for (int i = 0; i < 100; ++i) {
    c.sources.push_back(oracle::random_operand(Dtype::float32, 5000, ReduceOp::sum, random));
  }
  const Bytes expected = oracle::reduce(Dtype::float32, ReduceOp::sum, c.sources);
  c.result.resize(expected.size());
  c.to = cut(c.result, 4, random);
  for (int i = 0; i < 100; ++i) c.add(Place::unmapped, 4, neighbour, random);
  c.finish(Dtype::float32, ReduceOp::sum);
  Workspace workspace;
  ASSERT_TRUE(perform(c.job, 0, expected.size(), workspace).ok());
  EXPECT_EQ(c.result, expected);
}

TEST(JobDeathTest, mistakes_of_ours_are_assertions) {
  Bytes bytes(16);
  const Piece piece{bytes.data(), 16};
  const std::vector<Operand> two(2, Operand{{&piece, 1}, {}, nullptr});
  std::size_t measured = 0;
  EXPECT_DEATH(
      (void)measure({.dtype = Dtype::boolean, .to = {&piece, 1}, .sources = two}, measured),
      "bool");
  EXPECT_DEATH(
      (void)measure(
          {.dtype = Dtype::float32, .op = ReduceOp::average, .to = {&piece, 1}, .sources = two},
          measured),
      "an average is a sum with a divisor");
  EXPECT_DEATH((void)measure({.dtype = Dtype::float32, .to = {&piece, 1}}, measured),
               "without sources");
}

}  // namespace
}  // namespace rdmacoll
