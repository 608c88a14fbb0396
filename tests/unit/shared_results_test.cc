#include "memory/shared_results.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "algorithm_names.h"
#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/lower.h"
#include "collectives/verify.h"
#include "sanitized.h"
#include "unit/schedules.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kMi = std::size_t{1} << 20;

std::unique_ptr<MemoryPool> pool_of(std::size_t bytes) {
  std::unique_ptr<MemoryPool> pool;
  EXPECT_TRUE(MemoryPool::create(bytes, pool).ok());
  return pool;
}

ResultBlock block_of(std::byte* block, const MemoryPool& pool) {
  return {block, pool.view() + (block - pool.base()), kMi};
}

std::shared_ptr<void> hold_of(std::byte* block, const MemoryPool& pool) {
  std::shared_ptr<void> hold;
  EXPECT_TRUE(hold_results(block_of(block, pool), pool.mapping(), hold).ok());
  return hold;
}

TEST(SharedResults, begin_at_cache_lines_one_after_the_other) {
  const std::array<uint64_t, 5> bytes{4, 64, 0, 65, 4000};
  const ResultOffsets offsets(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(offsets.of(i) % 64, 0u);
    const std::size_t end = i + 1 < bytes.size() ? offsets.of(i + 1) : offsets.block_bytes();
    EXPECT_GE(end, offsets.of(i) + bytes[i]);
    EXPECT_LT(end, offsets.of(i) + bytes[i] + 64);
  }
}

TEST(SharedResults, are_taken_back_when_all_have_let_go) {
  const auto pool = pool_of(4 * kMi);
  SharedResults results(*pool);
  std::byte* const block = results.lend(kMi, 2);
  ASSERT_NE(block, nullptr);
  auto mine = hold_of(block, *pool);
  auto copy = mine;
  auto others = hold_of(block, *pool);
  ASSERT_NE(results.lend(kMi / 2, 1), nullptr);
  EXPECT_EQ(results.lend(kMi, 2), nullptr) << "more than half of the pool";
  mine.reset();
  others.reset();
  EXPECT_EQ(results.lend(kMi, 2), nullptr) << "a copy of the hold is a hold";
  copy.reset();
  EXPECT_EQ(results.lend(kMi, 2), block);
}

TEST(SharedResults, outlive_the_pool) {
  auto pool = pool_of(4 * kMi);
  std::byte* const block = SharedResults(*pool).lend(kMi, 1);
  auto hold = hold_of(block, *pool);
  pool.reset();
  std::memset(block + kResultOffset, 7, kMi - kResultOffset);
  EXPECT_EQ(block[kMi - 1], std::byte{7});
  hold.reset();
}

// TensorFlow or an array may write to its result in place. Neither the other holders nor the next
// holder of the same memory see these writes.
TEST(SharedResults, keep_what_their_holder_writes_to_that_holder) {
  const auto pool = pool_of(4 * kMi);
  SharedResults results(*pool);
  const ResultBlock block = block_of(results.lend(kMi, 1), *pool);
  for (int round = 0; round < 3; ++round) {
    auto hold = hold_of(block.shared, *pool);
    for (std::size_t at = kResultOffset; at < kMi; ++at) block.shared[at] = std::byte{7};
    EXPECT_EQ(block.view[kMi - 1], std::byte{7});
    std::memset(block.view + kMi / 2, 9 + round, kMi / 4);
    EXPECT_EQ(block.view[kMi / 2], std::byte(9 + round));
    EXPECT_EQ(block.shared[kMi / 2], std::byte{7});
    hold.reset();
    block.shared[kMi / 2] = std::byte{8};
    EXPECT_EQ(block.view[kMi / 2], std::byte{8}) << round;
  }
}

TEST(SharedResults, are_not_let_go_by_a_forked_child) {
  const auto pool = pool_of(4 * kMi);
  SharedResults results(*pool);
  std::byte* const block = results.lend(kMi, 1);
  auto hold = hold_of(block, *pool);
  const pid_t child = ::fork();
  if (child == 0) {
    hold.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(results.lend(kMi / 2, 1), block);
  hold.reset();
  EXPECT_EQ(results.lend(kMi, 1), block);
}

// One rank writes each part of a shared result, once. The other ranks hear that the part is there.
TEST(SharedResults, are_right_with_and_without_views) {
  for (int ranks = 2; ranks <= kRanksMax; ++ranks) {
    for (int form = 0; form < 8; ++form) {
      std::vector<Schedule> lowered;
      for (int rank = 0; rank < ranks; ++rank) {
        const Placement placement{.views = std::vector<bool>(ranks, form & 1),
                                  .input = host_memory((form & 2) != 0),
                                  .output = host_memory((form & 4) != 0),
                                  .output_shared = true};
        lowered.push_back(
            lower(make_schedule(named::direct, {.ranks = ranks, .rank = rank}), placement));
        int written = 0;
        for (const Step& step : lowered.back().steps) {
          written += computes(step.verb) && step.to.space == Space::output ? step.to.parts : 0;
        }
        ASSERT_EQ(written, 1) << to_text(lowered.back());
      }
      ASSERT_EQ(verify(lowered, AlgorithmRow::Result::sum, 0, true), "")
          << ranks << " ranks, form " << form << "\n"
          << to_text(lowered[0]);
    }
  }
}

// Servers write their parts of the results. The ranks write nothing.
TEST(SharedResults, are_written_by_servers_that_see_them) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    for (int servers = 1; servers <= 5; ++servers) {
      for (int form = 0; form < 8; ++form) {
        std::vector<Schedule> lowered;
        for (int rank = 0; rank < ranks + servers; ++rank) {
          const Placement placement{.views = std::vector<bool>(ranks + servers, form & 1),
                                    .input = host_memory((form & 2) != 0),
                                    .output = host_memory((form & 4) != 0),
                                    .output_shared = true};
          const Shape shape{
              .ranks = ranks, .rank = rank, .servers = servers, .shares_output = true};
          lowered.push_back(lower(make_schedule(named::parameter_server, shape), placement));
          int written = 0;
          for (const Step& step : lowered.back().steps) {
            const bool writes = !sends(step.verb) && step.to.space == Space::output;
            written += writes ? step.to.parts : 0;
          }
          ASSERT_EQ(written, rank < ranks ? 0 : 1) << to_text(lowered.back());
        }
        ASSERT_EQ(verify(lowered, AlgorithmRow::Result::sum, 0, true), "")
            << ranks << " ranks, " << servers << " servers, form " << form << "\n"
            << to_text(lowered.back());
      }
    }
  }
}

// Both ranks of this schedule write the same part of the result. The verifier has to find this.
TEST(SharedResults, of_two_writers_are_found) {
  std::vector<Schedule> lowered;
  for (int rank = 0; rank < 2; ++rank) {
    Builder program(2, rank, 1);
    const Slice other = program.scratch(0);
    program.send(1 - rank, program.input(0));
    program.receive(1 - rank, other);
    program.reduce(program.output(0),
                   {rank == 0 ? program.input(0) : other, rank == 0 ? other : program.input(0)},
                   true);
    program.signal({.verb = Verb::send, .peer = 1 - rank, .to = program.output(0)});
    program.signal({.verb = Verb::receive, .peer = 1 - rank, .to = program.output(0)});
    lowered.push_back(program.finish());
  }
  EXPECT_NE(verify(lowered, AlgorithmRow::Result::sum, 0, false).find("has a result already"),
            std::string::npos);
}

}  // namespace
}  // namespace rdmacoll
