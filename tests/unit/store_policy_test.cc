// Writes of peer-visible memory go through the cache or past it. The measured cost decides, again
// and again.
#include "memory/store_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rdmacoll {
namespace {

constexpr std::size_t kBytes = 64 << 10;
constexpr int kMany = 4096;  // writes: more than two trials

// A machine on which a write takes what these say.
struct Machine {
  static inline uint64_t ticks = 0;
  static inline double through_cache = 0;  // ticks of a byte
  static inline double past_cache = 0;
  static constexpr double kMemory = 5;

  static uint64_t now() { return ticks; }
  static double memory() { return kMemory; }
  static StorePolicy writes_for(double through, double past) {
    ticks = 0;
    through_cache = through;
    past_cache = past;
    return StorePolicy({&now, &memory});
  }
};

// Performs `count` writes of `bytes` each and returns how many of them went past the cache.
int write(StorePolicy& writes, int count, std::size_t bytes = kBytes, bool is_compared = false) {
  int past_cache = 0;
  for (int i = 0; i < count; ++i) {
    const bool is_past = is_compared ? writes.begin_compared(bytes) : writes.begin(bytes);
    const double cost = is_past ? Machine::past_cache : Machine::through_cache;
    Machine::ticks += static_cast<uint64_t>(cost * static_cast<double>(bytes));
    writes.end();
    past_cache += is_past ? 1 : 0;
  }
  return past_cache;
}

TEST(StorePolicy, go_through_the_cache_where_that_takes_less) {
  StorePolicy writes = Machine::writes_for(1, 1);
  write(writes, kMany);
  EXPECT_LT(write(writes, kMany), kMany / 10);
  EXPECT_FALSE(writes.go_past_cache(kBytes));
}

TEST(StorePolicy, go_past_the_cache_where_lines_are_taken_away_slowly) {
  StorePolicy writes = Machine::writes_for(27, 1);
  write(writes, kMany);
  EXPECT_GT(write(writes, kMany), kMany * 9 / 10);
  EXPECT_TRUE(writes.go_past_cache(kBytes));
}

// A write past the cache saves time for the writer, but the reader then has to fetch from memory.
TEST(StorePolicy, count_what_the_reader_fetches) {
  StorePolicy writes = Machine::writes_for(1 + 0.5 * Machine::kMemory, 1);
  write(writes, kMany);
  EXPECT_FALSE(writes.go_past_cache(kBytes));
}

TEST(StorePolicy, notice_within_some_dozens_that_lines_have_become_slow) {
  StorePolicy writes = Machine::writes_for(1, 1);
  write(writes, 100 * kMany);
  Machine::through_cache = 27;
  write(writes, 400);
  EXPECT_TRUE(writes.go_past_cache(kBytes));
}

TEST(StorePolicy, notice_that_lines_have_become_fast) {
  StorePolicy writes = Machine::writes_for(27, 1);
  write(writes, 100 * kMany);
  Machine::through_cache = 1;
  write(writes, 10 * kMany);
  EXPECT_FALSE(writes.go_past_cache(kBytes));
}

TEST(StorePolicy, decide_by_size) {
  StorePolicy writes = Machine::writes_for(27, 1);
  write(writes, kMany);
  Machine::through_cache = 1;
  write(writes, kMany, 4 * kBytes);
  EXPECT_TRUE(writes.go_past_cache(kBytes));
  EXPECT_FALSE(writes.go_past_cache(4 * kBytes));
}

// A row of trials has four sums whose times do not count. The writes have settled then.
TEST(StorePolicy, settle_a_new_size_within_four_writes_that_are_compared) {
  StorePolicy writes = Machine::writes_for(27, 1);
  write(writes, 4, kBytes, true);
  EXPECT_EQ(write(writes, 40, kBytes, true), 40);
  EXPECT_TRUE(writes.go_past_cache(kBytes));
  writes = Machine::writes_for(1, 1);
  write(writes, 4, kBytes, true);
  EXPECT_EQ(write(writes, 40, kBytes, true), 0);
}

// No peer has read the first places of a program, so no lines have to be taken from it there.
TEST(StorePolicy, compare_anew_when_lines_have_become_slow) {
  StorePolicy writes = Machine::writes_for(1, 1);
  write(writes, 40, kBytes, true);
  Machine::through_cache = 27;
  write(writes, 8, kBytes, true);
  EXPECT_EQ(write(writes, 40, kBytes, true), 40);
}

// Writes that are compared disturb no trial, and follow the last one.
TEST(StorePolicy, try_nothing_while_settled_writes_are_compared) {
  for (const double through : {1, 27}) {
    StorePolicy writes = Machine::writes_for(through, 1);
    write(writes, kMany);
    const int past_cache = through > 1 ? kMany : 0;
    EXPECT_EQ(write(writes, kMany, kBytes, true), past_cache);
    EXPECT_GT(write(writes, 100 * kMany), past_cache);
  }
}

TEST(StorePolicy, leave_small_ones_in_the_cache) {
  StorePolicy writes = Machine::writes_for(27, 1);
  EXPECT_EQ(write(writes, kMany, StorePolicy::kBytesMin - 1), 0);
}

// Some sizes, both ways, with pieces that end anywhere.
TEST(StorePolicy, write_what_they_are_given) {
  StorePolicy writes;
  for (std::size_t bytes :
       {std::size_t{1}, std::size_t{4095}, std::size_t{70001}, std::size_t{3} << 20}) {
    std::vector<std::byte> from(bytes), to(bytes + 64);
    int ways[2] = {};
    for (int i = 0; i < 200; ++i) {
      for (std::size_t at = 0; at < bytes; at += 251) from[at] = static_cast<std::byte>(i + at);
      std::fill(to.begin(), to.end(), std::byte{0xee});
      const std::size_t cut = bytes * static_cast<std::size_t>(i) / 200;
      const Piece pieces[] = {{from.data(), cut}, {from.data() + cut, bytes - cut}};
      ++ways[i % 2 == 0 ? writes.gather(pieces, bytes, to.data()) : writes.copy(to.data(), from)];
      ASSERT_TRUE(std::equal(from.begin(), from.end(), to.begin()))
          << bytes << " bytes, cut at " << cut;
      ASSERT_EQ(to[bytes], std::byte{0xee});
    }
    EXPECT_GT(ways[0], 0);
    EXPECT_EQ(ways[1] > 0, bytes >= StorePolicy::kBytesMin);
  }
}

}  // namespace
}  // namespace rdmacoll
