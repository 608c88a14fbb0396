// The traffic of algorithms between nodes, and the time that it takes.
#include "collectives/traffic.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "sanitized.h"

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

TEST_F(TrafficOf, parts_side_by_side_is_that_of_the_longest_part) {
  const auto there_and_back = [](Traffic& traffic, int peer, double bytes) {
    traffic.send(peer, 0, bytes);
    traffic.deliver();
    traffic.send(0, peer, bytes);
    traffic.deliver();
  };
  const double one_way = 2 * kOverhead + kLatency, longest = 2 * (one_way + 1000 / kRate);
  const auto parts = [&](Traffic& traffic, double bytes) {
    traffic.side_by_side(2, [&](int part) {
      if (part == 1) return there_and_back(traffic, 2, 1000);
      there_and_back(traffic, 1, 0);
      traffic.send(1, 0, 0);
      traffic.deliver();
    });
    traffic.sum(0, bytes, 1);
  };
  const auto time_with_sum = [&](double bytes) {
    return time({0, 1, 2}, [&](Traffic& traffic) { parts(traffic, bytes); });
  };
  EXPECT_NEAR(time_with_sum(0), longest, 1e-9);
  // Rank 0 has the last message of the other part after three ways.
  EXPECT_NEAR(time_with_sum(9000), 3 * one_way + 9, 1e-9);
  // In rounds, each message of rank 0 waits for both that came before.
  const auto rounds = [&](Traffic& traffic) {
    for (int round = 0; round < 3; ++round) {
      for (const int peer : {1, 2}) {
        if (peer == 2 && round == 2) continue;
        const double bytes = peer == 2 ? 1000 : 0;
        traffic.send(round == 1 ? 0 : peer, round == 1 ? peer : 0, bytes);
      }
      traffic.deliver();
    }
  };
  EXPECT_GT(time({0, 1, 2}, rounds), longest + kOverhead);
}

TEST_F(TrafficOf, messages_that_need_no_copy_go_first) {
  const auto give = [](Traffic& traffic) {
    traffic.give(
        1000,
        [](auto visit) {
          visit(0, 1, 1);
          visit(0, 2, 1);
        },
        [&](int from, int to, double) { traffic.send(from, to, 1000); },
        [&] { traffic.copy(0, 5000); });
    traffic.deliver();
  };
  // Rank 1 is near. Its message waits for its copy and the other work, and that of rank 2 for less.
  EXPECT_NEAR(time({0, 0, 1}, give), 1 + 2 * kOverhead + kLatency + 1000 / kRate, 1e-9);
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
    const auto send = [&](int) {
      ++told;
      for (int rank = 0; rank < 600; ++rank) traffic.send(rank, (rank + 1) % 600, 100);
    };
    traffic.ring_rounds(599, send, [](int) {});
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

struct WorldShape {
  int ranks, nodes;
};

// All rows with all kinds of facts between nodes.
template <typename Visit>
void each_row(const WorldShape& world, Visit visit) {
  const std::vector<int> nodes = even_nodes(world.ranks, world.nodes);
  for (const LinkModel& links : {kNicLinks, kSocketLinks}) {
    const Tuning tuning = tuning_for(links);
    for (const AlgorithmRow& row : algorithm_table()) {
      for (const uint64_t bytes : {1u << 10, 64u << 10, 1u << 20, 64u << 20}) {
        for (const bool wide : {false, true}) {
          const Facts facts{.ranks = world.ranks,
                            .one_node = false,
                            .bytes = bytes,
                            .wide_sums = wide,
                            .spread = Spread({.ranks = world.ranks, .nodes = nodes}),
                            .is_even = true};
          if (why_no_candidate(row, tuning, facts).empty()) visit(row, tuning, facts);
        }
      }
    }
  }
}

TEST(TrafficOfAlikeNodes, is_that_of_all_nodes) {
  for (const WorldShape& world :
       {WorldShape{4, 4}, {7, 7}, {8, 2}, {16, 4}, {12, 4}, {15, 5}, {16, 8}}) {
    int alike = 0;
    each_row(world, [&](const AlgorithmRow& row, const Tuning& tuning, const Facts& facts) {
      Facts different = facts;
      different.spread.ranks_of_node = 0;
      Traffic first(tuning.links, facts, row.result, facts.bytes / 2);
      Traffic all(tuning.links, different, row.result, facts.bytes / 2);
      row.traffic(first);
      row.traffic(all);
      if (first.steps() < all.steps()) ++alike;
      EXPECT_NEAR(first.bound(), all.bound(), 1e-6 * all.bound()) << row.name;
      const double time = all.time();
      EXPECT_NEAR(first.time(), time, 0.01 * time)
          << row.name << ", " << facts.bytes << " bytes, " << world.ranks << " ranks";
    });
    EXPECT_GT(alike, 40);
  }
}

TEST(TrafficOfAlikeNodes, needs_equal_nodes_in_order) {
  const auto ranks_of_node = [](const std::vector<int>& nodes) {
    return Spread({.ranks = static_cast<int>(nodes.size()), .nodes = nodes}).ranks_of_node;
  };
  EXPECT_EQ(ranks_of_node({0, 1, 2}), 1);
  EXPECT_EQ(ranks_of_node({1, 1, 0, 0}), 2);
  EXPECT_EQ(ranks_of_node({0, 0, 1}), 0);
  EXPECT_EQ(ranks_of_node({0, 1, 1}), 0);
  EXPECT_EQ(ranks_of_node({0, 1, 0, 1}), 0);
  EXPECT_EQ(ranks_of_node({0, 0, 1, 1, 0, 0}), 0);
  EXPECT_EQ(ranks_of_node({0, 0, 0}), 1) << "the ranks of a single node use its network";
}

// The bound of a row tells that its time need not be found. No other row wins for that.
TEST(TrafficOfRows, decides_as_if_all_times_had_been_found) {
  for (const WorldShape& world : {WorldShape{5, 5}, {16, 16}, {7, 3}, {16, 4}, {27, 4}}) {
    std::map<std::tuple<double, Result, uint64_t, bool>, double> least;
    const auto key = [](const Tuning& tuning, const AlgorithmRow& row, const Facts& facts) {
      return std::tuple(tuning.links.network.latency_us, row.result, facts.bytes, facts.wide_sums);
    };
    each_row(world, [&](const AlgorithmRow& row, const Tuning& tuning, const Facts& facts) {
      const auto [found, is_new] = least.try_emplace(key(tuning, row, facts), 1e300);
      found->second = std::min(found->second, formula_us(row, tuning, facts));
    });
    each_row(world, [&](const AlgorithmRow& row, const Tuning& tuning, const Facts& facts) {
      if (choose(row.result, tuning, facts).algorithm != row.algorithm) return;
      EXPECT_LE(0.99 * formula_us(row, tuning, facts), least[key(tuning, row, facts)]) << row.name;
    });
  }
}

// All ranks wait while the root chooses. A step and an event take about 0.05 us each.
TEST(TrafficOfRows, is_a_bounded_amount_of_work) {
  struct Most {
    WorldShape world;
    uint64_t told, executed;
  };
  for (const Most& most : {Most{{64, 8}, 5'000, 11'000},
                           {{63, 8}, 32'000, 50'000},
                           {{1024, 1024}, 25'000, 35'000},
                           {{1024, 128}, 25'000, 35'000},
                           {{1000, 128}, 210'000, 55'000},
                           {{4096, 512}, 100'000, 130'000},
                           {{4095, 512}, 840'000, 80'000}}) {
    if (kSanitized && most.world.ranks > 1000) continue;
    for (const LinkModel& links : {kNicLinks, kSocketLinks}) {
      const std::vector<int> nodes = even_nodes(most.world.ranks, most.world.nodes);
      const Spread spread({.ranks = most.world.ranks, .nodes = nodes});
      for (const Result result : {Result::sum, Result::root_value, Result::concatenation,
                                  Result::own_sum, Result::root_sum, Result::exchange}) {
        for (const uint64_t bytes : {1u << 10, 64u << 10, 1u << 20, 64u << 20}) {
          const Facts facts{.ranks = most.world.ranks,
                            .one_node = false,
                            .bytes = bytes,
                            .spread = spread,
                            .is_even = true};
          ChoiceWork work;
          choose(result, tuning_for(links), facts, &work);
          EXPECT_LE(work.told, most.told) << most.world.ranks << ", " << bytes;
          EXPECT_LE(work.executed, most.executed) << most.world.ranks << ", " << bytes;
        }
      }
    }
  }
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
