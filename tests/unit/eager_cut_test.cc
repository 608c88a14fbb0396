#include "transport/rdma/eager_cut.h"

#include <gtest/gtest.h>

#include <bit>

#include "base/clock.h"
#include "transport/rdma/rdma_peer.h"

namespace rdmacoll::rdma {
namespace {

constexpr uint32_t kKiB = 1 << 10;

TEST(EagerCut, is_where_two_copies_take_as_long_as_the_way_of_a_grant) {
  struct Case {
    Nanoseconds way;
    double copy_speed;
    uint32_t cut;
  };
  for (const Case& each :
       {Case{8'192, 8, 32 * kKiB}, Case{8'191, 8, 16 * kKiB}, Case{2'000, 20, 16 * kKiB},
        Case{4'096, 16, 32 * kKiB}, Case{4'000, 16, 16 * kKiB}}) {
    EXPECT_EQ(eager_cut(each.way, each.copy_speed, kEagerBytesMax), each.cut)
        << each.way << " ns, " << each.copy_speed << " bytes/ns";
  }
}

TEST(EagerCut, stays_between_its_bounds) {
  EXPECT_EQ(eager_cut(1, 1, kEagerBytesMax), kEagerBytesMin);
  EXPECT_EQ(eager_cut(0, 1e9, kEagerBytesMax), kEagerBytesMin);
  EXPECT_EQ(eager_cut(kSecond, 100, kEagerBytesMax), kEagerBytesMax);
  EXPECT_EQ(eager_cut(kSecond, 100, 16 * kKiB), 16 * kKiB);
  EXPECT_EQ(eager_cut(kSecond, 100, 700), 700U);  // the peer's messages are that small
}

TEST(EagerCut, shortest_of_all_requests_counts) {
  LatencyTimer timer;
  EXPECT_TRUE(timer.is_done());
  timer.start(3);
  Nanoseconds now = 100;
  for (const Nanoseconds took : {50, 20, 900}) {
    ASSERT_TRUE(timer.wants_request());
    timer.begin(now);
    EXPECT_FALSE(timer.wants_request());
    timer.end(now += took);
  }
  EXPECT_TRUE(timer.is_done());
  EXPECT_FALSE(timer.wants_request());
  EXPECT_EQ(timer.best(), 20);
}

TEST(EagerCut, this_processor_copies_at_a_finite_speed) {
  const double speed = measure_copy_speed(SteadyClock());
  EXPECT_GT(speed, 0.01);
  EXPECT_LE(speed, kEagerBytesMax);
}

TEST(EagerCut, messages_of_all_peers_fit_a_small_pool) {
  constexpr std::size_t kMiB = 1 << 20;
  EXPECT_EQ(accumulation_that_fits(1024 * kMiB, 2), kEagerBytesMax);
  EXPECT_EQ(accumulation_that_fits(16 * kMiB, 2), kEagerBytesMin);
  for (const std::size_t pool : {16 * kMiB, 64 * kMiB, 256 * kMiB, 1024 * kMiB}) {
    for (int ranks = 1; ranks <= 1024; ranks *= 2) {
      const uint32_t bytes = accumulation_that_fits(pool, ranks);
      EXPECT_TRUE(std::has_single_bit(bytes));
      EXPECT_GE(bytes, kEagerBytesMin);
      EXPECT_LE(bytes, accumulation_that_fits(pool, 1));
      EXPECT_LE(bytes, accumulation_that_fits(2 * pool, ranks));
    }
  }
}

}  // namespace
}  // namespace rdmacoll::rdma
