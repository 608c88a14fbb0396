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

// Performs a write that takes `more` ticks for a byte than the machine's. Returns whether it went
// past the cache.
bool write_once(StorePolicy& writes, std::size_t bytes, const std::byte* compared_at,
                double more = 0) {
  const bool is_past =
      compared_at == nullptr ? writes.begin(bytes) : writes.begin_compared(compared_at, bytes);
  const double cost = more + (is_past ? Machine::past_cache : Machine::through_cache);
  Machine::ticks += static_cast<uint64_t>(cost * static_cast<double>(bytes));
  writes.end();
  return is_past;
}

// Performs `count` writes of `bytes` each and returns how many of them went past the cache.
int write(StorePolicy& writes, int count, std::size_t bytes = kBytes) {
  int past_cache = 0;
  for (int i = 0; i < count; ++i) past_cache += write_once(writes, bytes, nullptr) ? 1 : 0;
  return past_cache;
}

// Memory for compared writes. A policy sees addresses only.
std::byte memory[8 * kBytes];

// The same for writes that are compared, all to one place.
int write_compared(StorePolicy& writes, int count) {
  int past_cache = 0;
  for (int i = 0; i < count; ++i) past_cache += write_once(writes, kBytes, memory) ? 1 : 0;
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
// The first one of the five is the first write to its place.
TEST(StorePolicy, settle_a_new_size_within_five_writes_that_are_compared) {
  StorePolicy writes = Machine::writes_for(27, 1);
  write_compared(writes, 5);
  EXPECT_EQ(write_compared(writes, 40), 40);
  EXPECT_TRUE(writes.go_past_cache(kBytes));
  writes = Machine::writes_for(1, 1);
  write_compared(writes, 5);
  EXPECT_EQ(write_compared(writes, 40), 0);
}

// The first write to a place finds pages that the kernel has to give, and lines that no peer
// has read. Places may come in any order, and need not lie beside each other.
TEST(StorePolicy, leave_the_first_write_to_a_place_out_of_the_comparison) {
  constexpr std::size_t kPlaces = 4;
  for (const std::size_t order : {1U, 3U}) {
    for (const std::size_t distance : {kBytes, kBytes + 4096}) {
      for (const bool is_past_faster : {false, true}) {
        StorePolicy writes = Machine::writes_for(is_past_faster ? 27 : 1, 2);
        const auto place = [&](std::size_t i) { return memory + order * i % kPlaces * distance; };
        for (std::size_t i = 0; i < kPlaces; ++i) {
          const double more = is_past_faster ? 0 : 100.0 - 30.0 * static_cast<double>(i);
          EXPECT_FALSE(write_once(writes, kBytes, place(i), more));
        }
        for (std::size_t i = 0; i < 4; ++i) write_once(writes, kBytes, place(i));
        for (std::size_t i = 0; i < kMany; ++i) {
          ASSERT_EQ(write_once(writes, kBytes, place(i)), is_past_faster) << order << distance;
        }
      }
    }
  }
}

// The cores of the processor may change.
TEST(StorePolicy, compare_anew_when_lines_have_become_slow) {
  StorePolicy writes = Machine::writes_for(1, 1);
  write_compared(writes, 40);
  Machine::through_cache = 27;
  write_compared(writes, 8);
  EXPECT_EQ(write_compared(writes, 40), 40);
}

// Writes that are compared disturb no trial, and follow the last one.
TEST(StorePolicy, try_nothing_while_settled_writes_are_compared) {
  for (const double through : {1, 27}) {
    StorePolicy writes = Machine::writes_for(through, 1);
    write(writes, kMany);
    const int past_cache = through > 1 ? kMany : 0;
    EXPECT_EQ(write_compared(writes, kMany), past_cache);
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
