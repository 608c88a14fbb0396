// The traffic of algorithms between nodes, and the time that it takes.
#include "collectives/traffic.h"

#include <gtest/gtest.h>

#include <vector>

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

constexpr double kLatency = 10, kOverhead = 3, kRate = 100, kNear = 0.5;

LinkModel links() {
  return {.node = {.latency_us = kNear},
          .network = {.latency_us = kLatency, .overhead_us = kOverhead, .bytes_per_us = kRate},
          .copy_bytes_per_us = 1000,
          .reduce_bytes_per_us = 1000};
}

class TrafficOf : public testing::Test {
 protected:
  // The time of what `tell` does in one segment of 1,000 bytes.
  template <typename Tell>
  double time(const std::vector<int>& nodes, Tell tell, uint64_t segments = 1) {
    const auto ranks = static_cast<int>(nodes.size());
    const Facts facts{.ranks = ranks,
                      .one_node = false,
                      .bytes = segments * 1000,
                      .spread = Spread({.ranks = ranks, .nodes = nodes})};
    Traffic traffic(links_, facts, Result::sum, 1000);
    tell(traffic);
    return traffic.time();
  }

  const LinkModel links_ = links();
};

TEST_F(TrafficOf, a_message_is_its_overheads_its_latency_and_its_bytes) {
  const auto one = [](Traffic& traffic) {
    traffic.send(0, 1, 1000);
    traffic.deliver();
  };
  EXPECT_NEAR(time({0, 1}, one), 2 * kOverhead + kLatency + 1000 / kRate, 1e-9);
  EXPECT_NEAR(time({0, 0, 1}, one), kNear, 1e-9);  // the peer reads it in the memory of the node
}

TEST_F(TrafficOf, ranks_of_a_node_waits_at_their_port) {
  const auto two = [](Traffic& traffic) {
    traffic.send(0, 2, 1000);
    traffic.send(1, 3, 1000);
    traffic.deliver();
  };
  const double alone = 2 * kOverhead + kLatency + 1000 / kRate;
  EXPECT_NEAR(time({0, 1, 2, 3}, two), alone, 1e-9);
  EXPECT_NEAR(time({0, 0, 1, 2}, two), alone + 1000 / kRate, 1e-9);
  EXPECT_NEAR(time({0, 1, 2, 2}, two), alone + 1000 / kRate, 1e-9);
}

TEST_F(TrafficOf, rounds_begin_when_the_messages_of_the_last_one_are_there) {
  const double each = 2 * kOverhead + kLatency + 1000 / kRate + 1;  // and the sum
  const auto rounds = [](Traffic& traffic) {
    for (int round = 0; round < 3; ++round) {
      traffic.send(round, round + 1, 1000);
      traffic.deliver();
      traffic.sum(round + 1, 1000, 1);
    }
  };
  EXPECT_NEAR(time({0, 1, 2, 3}, rounds), 3 * each, 1e-9);
}

TEST_F(TrafficOf, several_segments_is_bounded_by_the_busiest_port) {
  const auto one = [](Traffic& traffic) {
    traffic.send(0, 1, 1000);
    traffic.deliver();
  };
  const double alone = time({0, 1}, one);
  for (const uint64_t segments : {2, 4, 40}) {
    const double others = static_cast<double>(segments - 1) * 1000 / kRate;
    EXPECT_NEAR(time({0, 1}, one, segments), alone + others, 1e-9) << segments;
  }
}

TEST_F(TrafficOf, a_large_world_is_that_of_all_its_rounds_and_pairs) {
  std::vector<int> nodes(600);
  for (int rank = 0; rank < 600; ++rank) nodes[rank] = rank;
  int told = 0;
  const double ring = time(nodes, [&](Traffic& traffic) {
    traffic.repeat(599, [&](int) {
      ++told;
      for (int rank = 0; rank < 600; ++rank) traffic.send(rank, (rank + 1) % 600, 100);
      traffic.deliver();
    });
  });
  EXPECT_LT(told, 30);
  EXPECT_NEAR(ring, 599 * (2 * kOverhead + kLatency + 100 / kRate), 1e-6);
  std::vector<double> given(600, 0);
  time(nodes, [&](Traffic& traffic) {
    traffic.each_pair([&](int from, int to, double count) {
      EXPECT_NE(from, to);
      given[from] += count;
    });
  });
  for (const double count : given) EXPECT_NEAR(count, 599, 1e-6);
}

// The engine remembers what `rdmacoll plan` computes.
TEST(Choices, are_those_of_the_pure_function) {
  const std::vector<int> nodes = even_nodes(6, 3);
  const Tuning tuning = tuning_for(kSocketLinks);
  Choices choices;
  for (int turn = 0; turn < 2; ++turn) {
    for (uint64_t bytes = 1; bytes < 1 << 24; bytes += bytes / 5 + 1) {
      for (const bool canonical : {false, true}) {
        for (const Result result : {Result::sum, Result::root_value, Result::exchange}) {
          const Facts facts{.ranks = 6,
                            .one_node = false,
                            .bytes = bytes,
                            .canonical = canonical,
                            .spread = Spread({.ranks = 6, .nodes = nodes}),
                            .is_even = bytes % 2 == 0};
          const Choice found = choices.choose(result, tuning, facts);
          const Choice pure = choose(result, tuning, facts);
          EXPECT_EQ(found.algorithm, pure.algorithm) << bytes;
          EXPECT_EQ(found.segment_bytes, pure.segment_bytes) << bytes;
          EXPECT_TRUE(!canonical || result != Result::sum || adds_in_canonical_order(found, facts));
        }
      }
    }
  }
}

}  // namespace
}  // namespace rdmacoll
