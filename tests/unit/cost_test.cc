// The executed cost of every algorithm, against the formulas of the literature.
#include "collectives/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "algorithm_names.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// Hockney's model: a transfer takes alpha and beta per byte, a sum gamma per byte, the rest
// nothing.
constexpr double kAlpha = 5, kBeta = 1 / 1000.0, kGamma = 1 / 4000.0, kInfinite = 1e15;

LinkModel hockney() {
  const Link link{.latency_us = kAlpha, .bytes_per_us = 1 / kBeta};
  return {.node = link,
          .network = link,
          .copy_bytes_per_us = kInfinite,
          .reduce_bytes_per_us = 1 / kGamma};
}

// One rank a node, in one segment unless given.
double time_of(Algorithm algorithm, int ranks, uint64_t bytes,
               uint64_t segment_bytes = 1ull << 40) {
  const LinkModel links = hockney();
  const std::vector<int> nodes = even_nodes(ranks, ranks);
  const auto schedules =
      lowered_schedules(algorithm, {.ranks = ranks, .nodes = nodes}, links, true);
  return cost_of(schedules, nodes, links, bytes, segment_bytes).time_us;
}

struct Formula {
  Algorithm algorithm;
  bool any_ranks;  // else powers of two
  double (*time)(double p, double n);
};
const Formula kFormulas[] = {
    {named::ring, true,
     [](double p, double n) {
       return 2 * (p - 1) * kAlpha + 2 * (p - 1) / p * n * kBeta + (p - 1) / p * n * kGamma;
     }},
    {named::direct, true,
     [](double p, double n) {
       return 2 * kAlpha + 2 * (p - 1) / p * n * kBeta + (p - 1) / p * n * kGamma;
     }},
    {named::one_shot, true,
     [](double p, double n) { return kAlpha + (p - 1) * n * (kBeta + kGamma); }},
    {named::recursive_doubling, false,
     [](double p, double n) { return std::log2(p) * (kAlpha + n * kBeta + n * kGamma); }},
    {named::halving_doubling, false,
     [](double p, double n) {
       return 2 * std::log2(p) * kAlpha + 2 * (p - 1) / p * n * kBeta + (p - 1) / p * n * kGamma;
     }},
    {named::binomial_broadcast, false,
     [](double p, double n) { return std::log2(p) * (kAlpha + n * kBeta); }},
    {named::flat_broadcast, true, [](double p, double n) { return kAlpha + (p - 1) * n * kBeta; }},
    {named::flat_reduce, true,
     [](double p, double n) { return kAlpha + (p - 1) * n * (kBeta + kGamma); }},
    {named::direct_allgather, true,
     [](double p, double n) { return kAlpha + (p - 1) / p * n * kBeta; }},
    {named::ring_allgather, true,
     [](double p, double n) { return (p - 1) * (kAlpha + n / p * kBeta); }},
    {named::doubling_allgather, false,
     [](double p, double n) { return std::log2(p) * kAlpha + (p - 1) / p * n * kBeta; }},
};

TEST(Cost, is_that_of_the_literature) {
  for (const Formula& formula : kFormulas) {
    for (const int ranks : {2, 3, 4, 7, 8, 16, 31, 32}) {
      if (!formula.any_ranks && !std::has_single_bit(static_cast<unsigned>(ranks))) continue;
      for (const uint64_t bytes : {8ull, 10'000ull, 1'000'000ull, 100'000'000ull}) {
        const double expected = formula.time(ranks, static_cast<double>(bytes));
        EXPECT_NEAR(time_of(formula.algorithm, ranks, bytes), expected, 0.01 * expected)
            << name_of(formula.algorithm) << ", " << ranks << " ranks, " << bytes << " bytes";
      }
    }
  }
}

// The algorithms fold no surplus ranks in first. The right edge determines the cost of a chain of
// blocks.
TEST(Cost, of_other_numbers_of_ranks_is_little_more_than_of_the_next_power_of_two) {
  for (const int ranks : {3, 5, 6, 7, 11, 13, 24, 31}) {
    const auto next = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks)));
    EXPECT_LE(time_of(named::recursive_doubling, ranks, 8),
              1.01 * time_of(named::recursive_doubling, next, 8));
    EXPECT_LE(time_of(named::doubling_allgather, ranks, 8),
              1.01 * time_of(named::doubling_allgather, next, 8));
    for (const uint64_t bytes : {8ull, 1'000'000ull}) {
      EXPECT_LE(time_of(named::halving_doubling, ranks, bytes),
                1.65 * time_of(named::halving_doubling, next, bytes))
          << ranks << " ranks, " << bytes << " bytes";
    }
  }
}

// Sanders, Speck and Traeff: the time is n beta, and some rounds of a segment that fill the trees.
// The root of a binomial tree sends everything log2 p times.
TEST(Cost, of_the_two_trees_is_that_of_sending_once) {
  constexpr uint64_t kBytes = 64 << 20, kSegment = 256 << 10;
  for (const int ranks : {3, 4, 5, 8, 16, 33}) {
    const double once = kBytes * kBeta;
    const double levels = std::ceil(std::log2(ranks));
    const double took = time_of(named::pipelined_tree, ranks, kBytes, kSegment);
    EXPECT_GE(took, once) << ranks;
    EXPECT_LE(took, 1.05 * once + 3 * levels * (kAlpha + kSegment * kBeta)) << ranks;
    if (ranks >= 4) {
      EXPECT_GE(time_of(named::binomial_broadcast, ranks, kBytes, kSegment), 1.7 * took) << ranks;
    }
  }
}

// With two_level, each byte crosses between nodes as often as with one rank on each node.
TEST(Cost, of_two_levels_is_that_of_its_nodes) {
  LinkModel links = hockney();
  links.node = {.latency_us = 0.01, .bytes_per_us = kInfinite};
  links.reduce_bytes_per_us = kInfinite;
  for (const int per_node : {1, 2, 4, 8}) {
    for (const int count : {2, 4, 8}) {
      const std::vector<int> nodes = even_nodes(per_node * count, count);
      const Shape shape{.ranks = per_node * count, .nodes = nodes};
      const auto schedules = lowered_schedules(named::two_level, shape, links, true);
      constexpr uint64_t kBytes = 8'000'000;
      const Cost cost = cost_of(schedules, nodes, links, kBytes, 1ull << 40);
      const double expected =
          2 * std::log2(count) * kAlpha + 2.0 * (count - 1) / count * kBytes * kBeta;
      EXPECT_NEAR(cost.time_us, expected, 0.02 * expected) << per_node << " in " << count;
      EXPECT_NEAR(static_cast<double>(cost.network_bytes), 2.0 * (count - 1) / count * kBytes, 10);
    }
  }
}

TEST(Cost, of_a_pipeline_is_its_slowest_stage) {
  constexpr uint64_t kBytes = 64 << 20;
  const double once = 2.0 * 7 / 8 * kBytes * kBeta;
  const double whole = time_of(named::ring, 8, kBytes);
  const double cut = time_of(named::ring, 8, kBytes, 1 << 20);
  EXPECT_LT(cut, whole);  // sums overlap with transfers
  EXPECT_GE(cut, once);
  EXPECT_LT(cut, 1.02 * once);
  // The cost model extrapolates the segments that it does not execute: twice as many segments take
  // twice as long.
  const double twice = time_of(named::ring, 8, 2 * kBytes, 1 << 20);
  EXPECT_NEAR(twice / cut, 2, 0.02);
}

TEST(Cost, counts_the_processors_overhead_and_the_ports_gap) {
  LinkModel links = hockney();
  const std::vector<int> nodes = even_nodes(8, 8);
  const auto schedules =
      lowered_schedules(named::direct, {.ranks = 8, .nodes = nodes}, links, true);
  const double plain = cost_of(schedules, nodes, links, 8, 1 << 20).time_us;
  links.network.overhead_us = 1;
  const double busy = cost_of(schedules, nodes, links, 8, 1 << 20).time_us;
  EXPECT_GE(busy, plain + 2 * 7);  // each rank sends and receives 14 times, half of it in a row
  EXPECT_LE(busy, plain + 28);
  links.network.gap_us = 10;
  EXPECT_GE(cost_of(schedules, nodes, links, 8, 1 << 20).time_us, busy + 2 * 6 * 9);
}

// Within a node nothing goes through a port. A rank that sees a peer's memory reads this memory.
TEST(Cost, within_a_node_is_that_of_the_memory) {
  LinkModel links = hockney();
  links.network.bytes_per_us = 0.001;
  links.copy_bytes_per_us = 1000;
  const std::vector<int> nodes = even_nodes(4, 1);
  const Shape shape{.ranks = 4, .nodes = nodes};
  const uint64_t bytes = 4'000'000;
  const Cost seen = cost_of(lowered_schedules(named::direct, shape, links, true), nodes, links,
                            bytes, 1ull << 40);
  EXPECT_EQ(seen.network_bytes, 0u);
  const double reads = 0.75 * bytes * (kGamma + 1 / links.copy_bytes_per_us);
  EXPECT_NEAR(seen.time_us, reads, 0.02 * reads);
  // Each rank first packs the parts that others read, and copies its own part back.
  const Cost packed = cost_of(lowered_schedules(named::direct, shape, links, false), nodes, links,
                              bytes, 1ull << 40);
  EXPECT_NEAR(packed.time_us, reads + bytes / links.copy_bytes_per_us, 0.05 * reads);
}

}  // namespace
}  // namespace rdmacoll
