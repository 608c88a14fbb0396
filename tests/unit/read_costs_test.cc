// The costs of one-copy reads, from times that other programs may have disturbed.
#include "probe/read_costs.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rdmacoll::probe {
namespace {

constexpr double kPages = 64, kPageBytes = 4096;

TEST(ReadCosts, are_those_of_the_times) {
  // A call takes 900, a page 100, and 64 pages of bytes 6,400.
  const ReadCosts costs = costs_of({1000, 900 + 6400, 900 + 6400 + 6400}, kPages, kPageBytes);
  ASSERT_TRUE(costs.is_known());
  EXPECT_NEAR(costs.call_ns, 900, 1);
  EXPECT_NEAR(costs.page_ns, 100, 1);
  EXPECT_NEAR(costs.bytes_per_us, kPages * kPageBytes * 1000 / 6400, 100);
}

// A disturbed read of one page may take longer than a read of all bytes.
TEST(ReadCosts, are_unknown_if_all_bytes_take_less_time_than_one_page) {
  EXPECT_FALSE(costs_of({20'000, 7300, 13'700}, kPages, kPageBytes).is_known());
  EXPECT_FALSE(costs_of({1000, 7300, 1000}, kPages, kPageBytes).is_known());
  EXPECT_FALSE(costs_of({0, 0, 0}, kPages, kPageBytes).is_known());
  EXPECT_FALSE(costs_of({-1, 7300, 13'700}, kPages, kPageBytes).is_known());
}

TEST(ReadCosts, are_positive_whatever_the_times_are) {
  const double all[] = {0, 1, 2, 50, 1000, 1001, 20'000, 1e9};
  int known = 0;
  for (const double pages : {2.0, 8.0, kPages}) {
    for (const double one_page : all) {
      for (const double each_page : all) {
        for (const double all_bytes : all) {
          const ReadCosts costs = costs_of({one_page, each_page, all_bytes}, pages, kPageBytes);
          if (!costs.is_known()) continue;
          ++known;
          EXPECT_GE(costs.call_ns, 1) << one_page << " " << each_page << " " << all_bytes;
          EXPECT_GE(costs.page_ns, 0) << one_page << " " << each_page << " " << all_bytes;
          EXPECT_TRUE(std::isfinite(costs.bytes_per_us));
          // All times fit the unsigned numbers of a profile.
          EXPECT_LT(costs.call_ns + pages * costs.page_ns, all_bytes + 1);
        }
      }
    }
  }
  EXPECT_GT(known, 100);
}

}  // namespace
}  // namespace rdmacoll::probe
