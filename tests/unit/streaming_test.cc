// Copies past the cache, with any begin and end: the bytes are equal, and no other byte is written.
#include "memory/streaming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace rdmacoll {
namespace {

TEST(Stream, copies_what_it_is_given_and_nothing_else) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  constexpr std::size_t kMost = 1000;
  for (std::size_t into_line = 0; into_line < 64; ++into_line) {
    for (int turn = 0; turn < 40; ++turn) {
      const std::size_t bytes = turn < 20 ? static_cast<std::size_t>(turn) * 7 : random() % kMost;
      const std::size_t from_line = random() % 64;
      alignas(64) std::byte to[kMost + 128];
      alignas(64) std::byte from[kMost + 128];
      for (std::byte& byte : to) byte = static_cast<std::byte>(random());
      for (std::byte& byte : from) byte = static_cast<std::byte>(random());
      std::vector<std::byte> expected(std::begin(to), std::end(to));
      std::copy_n(from + from_line, bytes, expected.begin() + static_cast<long>(into_line));
      stream(to + into_line, from + from_line, bytes);
      end_streams();
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), to))
          << "seed " << seed << ", " << bytes << " bytes from " << from_line << " to " << into_line;
    }
  }
}

TEST(Stream, data_for_peers_only_if_it_and_the_inputs_fill_the_shared_cache) {
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_FALSE(streams_shown(4 * kMiB, 8 * kMiB, 32 * kMiB));
  EXPECT_TRUE(streams_shown(4 * kMiB, 16 * kMiB, 32 * kMiB));
  EXPECT_FALSE(streams_shown(kMiB / 2, 64 * kMiB, 32 * kMiB)) << "short segments stay in a cache";
  EXPECT_TRUE(streams_shown(4 * kMiB, 8 * kMiB, 0)) << "its size is not known";
}

}  // namespace
}  // namespace rdmacoll
