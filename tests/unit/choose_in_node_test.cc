// Choices within a node, which follow from what its memory costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "algorithm_names.h"
#include "collectives/choose.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

// docs/measurements/2026-11-25-measured-otherwise.md, 2026-11-28-other-collectives.md and
// 2026-11-29-predictions.md: two to eight ranks on two cores of an AMD EPYC. A cut may move by a
// factor of two.
TEST(ChoiceInNode, is_close_to_the_measured_one) {
  Tuning tuning;
  tuning.links.memory.cores = 2;
  for (const int ranks : {2, 3, 4, 5, 8}) {
    for (uint64_t bytes = 1; bytes < 1u << 30; bytes *= 2) {
      const Facts facts{.ranks = ranks, .bytes = bytes};
      const auto chosen = [&](Result result) { return choose(result, tuning, facts).algorithm; };
      const uint64_t of_all = bytes * static_cast<uint64_t>(ranks);
      if (ranks == 2) {
        EXPECT_EQ(chosen(Result::sum),
                  bytes <= 32 << 10 ? named::recursive_doubling : named::write_back);
      } else if (of_all <= 64 << 10) {
        // Messages with much data favour fewer of them.
        const bool is_doubling = bytes <= 4 << 10 && ((ranks == 4 && bytes >= 4 << 10) ||
                                                      (ranks == 8 && bytes >= 1 << 10));
        EXPECT_EQ(chosen(Result::sum), is_doubling ? named::recursive_doubling : named::one_shot)
            << ranks << " " << bytes;
        EXPECT_EQ(chosen(Result::root_sum), named::flat_reduce);
      } else if (bytes >= 256 << 10) {
        // With more ranks, more answers are written back than direct writes sums.
        const Algorithm algorithm = chosen(Result::sum);
        EXPECT_TRUE(algorithm == named::direct ||
                    (algorithm == named::write_back && bytes < 1 << 20))
            << ranks << " " << bytes;
      }
      // Up to three ranks, a tree has one round too. No larger data was measured.
      if (ranks < 4 || bytes > 64 << 20) continue;
      EXPECT_EQ(chosen(Result::root_value), named::flat_broadcast) << ranks << " " << bytes;
      // Up to 4 KiB of 8 ranks, doubling costs the same within 4 %. It was not measured.
      if (ranks == 8 && bytes <= 4 << 10) continue;
      EXPECT_EQ(chosen(Result::concatenation), named::direct_allgather) << ranks << " " << bytes;
    }
  }
}

TEST(ChoiceInNode, follows_what_its_memory_costs) {
  const auto chosen = [](const NodeMemory& memory, int ranks, uint64_t bytes) {
    Tuning tuning;
    tuning.links.memory = memory;
    return choose(Result::sum, tuning, {.ranks = ranks, .bytes = bytes}).algorithm;
  };
  EXPECT_EQ(chosen({}, 4, 64 << 10), named::write_back);
  EXPECT_EQ(chosen({.lent_bytes_per_us = 10'000}, 4, 64 << 10), named::direct);
  EXPECT_EQ(chosen({.round_us = 20, .lent_bytes_per_us = 10'000}, 4, 64 << 10), named::one_shot);
  EXPECT_EQ(chosen({}, 4, 8 << 10), named::one_shot);
  const NodeMemory slow{
      .copy = {7500, 7500, 1e9}, .reduce = {5100, 5100, 1e9}, .lent_bytes_per_us = 5000};
  EXPECT_EQ(chosen(slow, 4, 8 << 10), named::direct);
}

// Sums that overwrite what peers read are packed first, so they are no way of reading in place.
TEST(ChoiceInNode, is_never_packed_where_sums_are_read_in_place) {
  for (const int ranks : {2, 4, 8}) {
    for (const uint64_t bytes : {1u << 20, 4u << 20, 64u << 20}) {
      const Facts facts{.ranks = ranks, .bytes = bytes, .in_place = true};
      const Algorithm chosen = choose(Result::sum, {}, facts).algorithm;
      EXPECT_TRUE(chosen == named::direct || chosen == named::halving_doubling) << name_of(chosen);
    }
  }
}

// The formulas are right within a quarter, so two algorithms that cost the same by them may differ
// in truth.
TEST(ChoiceInNode, has_a_rival_that_costs_the_same) {
  Tuning tuning;
  tuning.links.memory.cores = 2;
  int draws = 0;
  for (double size = 1 << 16; size < 1 << 26; size *= 1.002) {
    const Facts facts{.ranks = 4, .bytes = static_cast<uint64_t>(size)};
    const Choice choice = choose(Result::root_sum, tuning, facts);
    const double least = formula_us(*row_of(choice.algorithm), tuning, facts);
    const std::vector<Choice> rivals = rivals_in_node(choice, tuning, facts);
    for (const Algorithm other : {named::direct_reduce, named::binomial_reduce}) {
      if (other == choice.algorithm) continue;
      const double cost = formula_us(*row_of(other), tuning, facts);
      if (std::abs(cost / least - 1) > 1e-3) continue;
      ++draws;
      EXPECT_TRUE(std::ranges::any_of(rivals, [&](const Choice& rival) {
        return rival.algorithm == other;
      })) << size;
    }
  }
  EXPECT_GT(draws, 0);
}

// A profile decides within a node, and may differ from start to start. The bits must not.
TEST(ChoiceInNode, is_canonical_whatever_its_memory_costs) {
  uint32_t random = 1;
  const auto times = [&random](double& value) {
    random = random * 1664525 + 1013904223;
    value *= std::exp2(static_cast<double>(random >> 24) / 16 - 8);  // from 1/256 to 256
  };
  for (int trial = 0; trial < 2000; ++trial) {
    Tuning tuning;
    NodeMemory& memory = tuning.links.memory;
    for (double* value : {&memory.round_us, &memory.message_us, &memory.step_us, &memory.line_us,
                          &memory.copy.cached, &memory.copy.beyond, &memory.copy.beyond_all,
                          &memory.reduce.cached, &memory.reduce.beyond, &memory.reduce.beyond_all,
                          &memory.lent_bytes_per_us, &memory.read_page_us}) {
      times(*value);
    }
    const int ranks = 2 + trial % 40;
    const std::vector<int> nodes = even_nodes(ranks, 1);
    const Shape shape{.ranks = ranks, .nodes = nodes};
    for (const Result result : {Result::sum, Result::own_sum, Result::root_sum}) {
      for (const bool in_place : {false, true}) {
        const Facts facts{
            .ranks = ranks, .bytes = uint64_t{1} << (trial % 30), .in_place = in_place};
        EXPECT_TRUE(is_canonical(choose(result, tuning, facts).algorithm, shape));
      }
    }
  }
}

TEST(ChoiceBetweenNodes, does_not_depend_on_what_memory_costs) {
  LinkModel links = kSocketLinks;
  links.memory = {.round_us = 50, .message_us = 5, .cache_bytes = 1 << 14};
  constexpr Result kResults[] = {Result::sum,           Result::root_value,        Result::own_sum,
                                 Result::concatenation, Result::own_value,         Result::root_sum,
                                 Result::exchange,      Result::root_concatenation};
  for (const Result result : kResults) {
    for (const int ranks : {2, 4, 7, 16, 33}) {
      for (uint64_t bytes = 1; bytes < 1u << 30; bytes *= 2) {
        const Facts facts{.ranks = ranks, .one_node = false, .bytes = bytes, .is_even = true};
        const Choice usual = choose(result, tuning_for(kSocketLinks), facts);
        const Choice chosen = choose(result, tuning_for(links), facts);
        EXPECT_EQ(chosen.algorithm, usual.algorithm) << ranks << " " << bytes;
        EXPECT_EQ(chosen.segment_bytes, usual.segment_bytes) << ranks << " " << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace rdmacoll
