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

// Memory of one rate. The rest costs nothing.
NodeMemory plain_memory() {
  return {.round_us = 0,
          .message_us = 0,
          .view_us = 0,
          .step_us = 0,
          .line_us = 0,
          .cache_bytes = 1ull << 40,
          .copy = {1000, 1000, kInfinite},
          .reduce = {500, 500, kInfinite},
          .read_call_us = 0,
          .read_page_us = 0,
          .read_bytes_per_us = 1000};
}

double in_node(Algorithm algorithm, int ranks, const NodeMemory& memory, uint64_t bytes,
               bool is_visible = false, uint64_t segment_bytes = 1ull << 40) {
  LinkModel links = hockney();
  links.network.bytes_per_us = links.node.bytes_per_us = 0.001;  // no port counts
  links.memory = memory;
  const std::vector<int> nodes = even_nodes(ranks, 1);
  const Shape shape{.ranks = ranks, .nodes = nodes};
  const Cost cost = cost_of(lowered_schedules(algorithm, shape, links, is_visible), nodes, links,
                            bytes, segment_bytes);
  EXPECT_EQ(cost.network_bytes, 0u);
  return cost.time_us;
}

// A rank that sees a peer's memory reads this memory. Otherwise each rank first packs what others
// read: its data for them, and its sum.
TEST(CostInNode, is_that_of_the_memory) {
  const double bytes = 4'000'000;
  const double reads = 0.75 * bytes * (1 / 500.0 + 1 / 1000.0);
  EXPECT_NEAR(in_node(named::direct, 4, plain_memory(), 4'000'000, true),
              0.75 * bytes * (1 / 500.0 + 1 / 1000.0 + 1 / 1000.0), 0.001 * reads);
  EXPECT_NEAR(in_node(named::direct, 4, plain_memory(), 4'000'000), reads + bytes / 1000,
              0.001 * reads);
}

TEST(CostInNode, counts_rounds_messages_and_steps) {
  NodeMemory memory = plain_memory();
  memory.round_us = 100;
  // The round trip of one round, and of two. A rank ends when its peers have read its data.
  EXPECT_NEAR(in_node(named::one_shot, 4, memory, 8), 200, 0.2);
  EXPECT_NEAR(in_node(named::direct, 4, memory, 8), 300, 0.2);
  memory = plain_memory();
  memory.message_us = 100;  // three are posted and three are taken, in each round
  EXPECT_NEAR(in_node(named::one_shot, 4, memory, 8), 600, 0.2);
  EXPECT_NEAR(in_node(named::direct, 4, memory, 8), 1200, 0.2);
  memory = plain_memory();
  memory.view_us = 100;  // data of few bytes goes in the messages
  const double few = in_node(named::one_shot, 4, memory, memory.data_bytes);
  EXPECT_NEAR(few, in_node(named::one_shot, 4, plain_memory(), memory.data_bytes), 0.1);
  const double more = in_node(named::one_shot, 4, memory, memory.data_bytes + 4);
  const double each = static_cast<double>(memory.data_bytes) / memory.copy.cached;
  EXPECT_NEAR(more - few, 600 - 6 * each, 0.1);
  memory = plain_memory();
  memory.step_us = 100;  // pack, reduce; three packs, a sum, a pack and three copies
  EXPECT_NEAR(in_node(named::one_shot, 4, memory, 8), 200, 0.2);
  EXPECT_NEAR(in_node(named::direct, 4, memory, 8), 800, 0.2);
}

// Others have the core while a rank waits, so hardly any work of its own passes meanwhile. Two of
// direct's twelve messages are taken before the last one of their round is there.
TEST(CostInNode, adds_work_and_turns_where_ranks_share_cores) {
  NodeMemory memory = plain_memory();
  memory.lines_us = 0;
  memory.message_us = 10;  // twice as long for two ranks of a core
  memory.switch_us = 100;
  memory.cores = 2;
  EXPECT_NEAR(in_node(named::one_shot, 4, memory, 8), 6 * 20 + 2 * 100, 0.3);
  EXPECT_NEAR(in_node(named::recursive_doubling, 4, memory, 8), 4 * 20 + 3 * 100, 0.3);
  EXPECT_NEAR(in_node(named::direct, 4, memory, 8), 10 * 20 + 3 * 100, 0.3);
}

// The caches hold 1 MB of 4 MB, so three quarters come from memory. Ranks share its rate.
TEST(CostInNode, is_higher_beyond_the_caches_where_ranks_share_the_rate) {
  NodeMemory memory = plain_memory();
  const double cached = in_node(named::direct_allgather, 2, memory, 4'000'000);
  memory.cache_bytes = 1'000'000;
  memory.copy = {1000, 100, 100};
  memory.reduce = memory.copy;
  // Each rank copies its half to its output, packs its half, and copies the other one. All in one
  // segment, so packed data lies beyond the caches too.
  EXPECT_NEAR(cached, 3 * 2000, 1);
  const double beyond = 6'000'000 * (0.25 / 1000 + 0.75 / 50);
  EXPECT_NEAR(in_node(named::direct_allgather, 2, memory, 4'000'000), beyond, 0.01 * beyond);
  // In short segments all of those in flight stay in the caches: the first copy is as before.
  const double packed = 4'000'000 * (0.625 / 1000 + 0.375 / 50) + beyond / 3;
  EXPECT_NEAR(in_node(named::direct_allgather, 2, memory, 4'000'000, false, 250'000), packed,
              0.01 * packed);
  memory.copy.beyond_all = 1000;  // enough for both
  const double alone = 6'000'000 * (0.25 / 1000 + 0.75 / 100);
  EXPECT_NEAR(in_node(named::direct_allgather, 2, memory, 4'000'000), alone, 0.01 * alone);
}

// All ranks use half of the shared cache, and memory for the rest.
TEST(CostInNode, is_lower_if_ranks_share_a_cache) {
  NodeMemory memory = plain_memory();
  memory.cache_bytes = 1'000'000;
  memory.copy = {.cached = 1000, .beyond = 100, .beyond_all = kInfinite, .shared = 500};
  memory.reduce = memory.copy;
  const auto time = [&](int ranks) {
    return in_node(named::direct_allgather, ranks, memory, 4'000'000);
  };
  const double without = time(2);
  memory.shared_cache_bytes = 32'000'000;  // half of it has the data and pools of both ranks
  memory.shared_cache_ranks = 8;
  const double all = 6'000'000 * (0.25 / 1000 + 0.75 / 500);
  EXPECT_NEAR(time(2), all, 0.01 * all);
  memory.shared_cache_bytes = 16'000'000;
  const double half = 6'000'000 * (0.25 / 1000 + 0.75 * (0.5 / 500 + 0.5 / 100));
  EXPECT_NEAR(time(2), half, 0.01 * half);
  memory.shared_cache_ranks = 1;  // each rank has a cache of this size
  EXPECT_NEAR(time(2), all, 0.01 * all);
  memory.shared_cache_bytes = 0;
  EXPECT_DOUBLE_EQ(time(2), without);
}

TEST(CostInNode, of_one_copy_reads_counts_calls_and_pages) {
  NodeMemory memory = plain_memory();
  const double plain = in_node(named::direct_allgather, 4, memory, 64 << 10, true);
  memory.read_call_us = 10;
  memory.read_page_us = 1;  // three parts of four pages
  EXPECT_NEAR(in_node(named::direct_allgather, 4, memory, 64 << 10, true), plain + 30 + 12, 0.1);
  // Packed data is read without the kernel.
  EXPECT_EQ(in_node(named::direct_allgather, 4, memory, 64 << 10),
            in_node(named::direct_allgather, 4, plain_memory(), 64 << 10));
}

// In a flat broadcast all read one rank's cache. In an allgather each reads from another rank.
TEST(CostInNode, counts_that_a_cache_serves_one_reader_at_a_time) {
  NodeMemory memory = plain_memory();
  memory.line_us = 1;
  constexpr uint64_t kBytes = 64'000;
  EXPECT_NEAR(in_node(named::flat_broadcast, 5, memory, kBytes), 4 * 1000 + 2 * 64, 1);
  EXPECT_NEAR(in_node(named::direct_allgather, 4, memory, kBytes), 3 * 250 + 2 * 16, 1);
}

// A profile measures NodeMemory at each start. Costs between nodes decide the order of additions,
// which equal runs must share.
TEST(CostInNode, has_no_influence_between_nodes) {
  for (const Algorithm algorithm : {named::two_level, named::ring, named::halving_doubling}) {
    LinkModel links = kSocketLinks;
    const std::vector<int> nodes = even_nodes(6, 3);
    const auto schedules = lowered_schedules(algorithm, {.ranks = 6, .nodes = nodes}, links, false);
    const double usual = cost_of(schedules, nodes, links, 1 << 20, 1 << 20).time_us;
    links.memory = plain_memory();
    links.memory.round_us = 1000;
    EXPECT_EQ(cost_of(schedules, nodes, links, 1 << 20, 1 << 20).time_us, usual);
  }
}

}  // namespace
}  // namespace rdmacoll
