// How transfers are cut for several TCP streams.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "transport/tcp/stripe.h"

namespace rdmacoll::tcp_test {
namespace {

using tcp::Stripe;

TEST(TcpStripes, are_taken_from_the_end_and_leave_the_first_stream_something) {
  const auto cut = [](std::optional<uint64_t> taken, uint64_t end) {
    const Stripe stripe = tcp::last_stripe(taken, end, 100);
    return std::pair(stripe.begin, stripe.bytes);
  };
  const std::pair<uint64_t, uint64_t> none{0, 0};
  EXPECT_EQ(cut(0, 250), std::pair(uint64_t{200}, uint64_t{50}));
  EXPECT_EQ(cut(0, 200), std::pair(uint64_t{100}, uint64_t{100}));
  EXPECT_EQ(cut(99, 200), std::pair(uint64_t{100}, uint64_t{100}));
  EXPECT_EQ(cut(100, 200), none);
  EXPECT_EQ(cut(150, 200), none);
  EXPECT_EQ(cut(0, 101), std::pair(uint64_t{100}, uint64_t{1}));
  EXPECT_EQ(cut(0, 100), none);
  EXPECT_EQ(cut(0, 0), none);
  EXPECT_EQ(cut(7, 7), none);
  // The first stream has not begun, so no byte is left to it.
  EXPECT_EQ(cut({}, 250), std::pair(uint64_t{200}, uint64_t{50}));
  EXPECT_EQ(cut({}, 100), std::pair(uint64_t{0}, uint64_t{100}));
  EXPECT_EQ(cut({}, 0), none);
}

TEST(TcpStripes, are_known_by_the_length_of_the_whole) {
  EXPECT_TRUE(tcp::is_stripe({100, 100}, 250, 100));
  EXPECT_TRUE(tcp::is_stripe({200, 50}, 250, 100));
  EXPECT_TRUE(tcp::is_stripe({0, 100}, 250, 100));
  EXPECT_TRUE(tcp::is_stripe({0, 50}, 50, 100));
  for (const Stripe wrong : {Stripe{0, 99}, Stripe{100, 99}, Stripe{100, 101}, Stripe{150, 100},
                             Stripe{200, 100}, Stripe{300, 0}, Stripe{~uint64_t{0}, 1}}) {
    EXPECT_FALSE(tcp::is_stripe(wrong, 250, 100)) << wrong.begin << ", " << wrong.bytes;
  }
}

// For any order of the streams' turns, every byte is taken once, and the stripes come to an end.
TEST(TcpStripes, cover_a_transfer_once) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<std::byte> memory(1 + random() % 5000);
    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < memory.size();) {
      const std::size_t length = std::min<std::size_t>(memory.size() - at, random() % 400);
      pieces.push_back({memory.data() + at, length});
      at += length;
    }
    Progress whole;
    whole.begin({.pieces = pieces});
    const uint64_t total = whole.bytes, stripe_bytes = 1 + random() % 600;
    std::vector<int> covered(memory.size());
    while (whole.done < whole.bytes) {
      const Stripe stripe = tcp::last_stripe(whole.done, whole.bytes, stripe_bytes);
      if (random() % 3 != 0 || stripe.bytes == 0) {
        const uint64_t more = std::min(1 + random() % stripe_bytes, whole.bytes - whole.done);
        for (uint64_t i = 0; i < more; ++i) ++covered[whole.done + i];
        whole.advance(more);
        continue;
      }
      EXPECT_TRUE(tcp::is_stripe(stripe, total, stripe_bytes));
      Progress part;
      tcp::begin_stripe(whole, stripe, part);
      ASSERT_EQ(total_bytes(part.pieces), stripe.bytes);
      for (const Piece& piece : part.pieces) {
        for (std::size_t i = 0; i < piece.bytes; ++i) ++covered[piece.data + i - memory.data()];
      }
      whole.bytes = stripe.begin;
    }
    EXPECT_EQ(std::count(covered.begin(), covered.end(), 1),
              static_cast<std::ptrdiff_t>(covered.size()));
  }
}

}  // namespace
}  // namespace rdmacoll::tcp_test
