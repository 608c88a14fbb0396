// Compares the chosen algorithms with the cost model. No cut may show as a jump.
#include "collectives/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "algorithm_names.h"
#include "base/text.h"
#include "collectives/cost.h"
#include "sanitized.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

struct Place {
  const char* name;
  int ranks, nodes;
};
// Three nodes of three ranks are not among them. For small sizes over TCP, doubling takes clearly
// longer there than two_level.
constexpr Place kPlaces[] = {{"pair", 2, 2},
                             {"three", 3, 3},
                             {"four", 4, 4},
                             {"five", 5, 5},
                             {"eight", 8, 8},
                             {"twelve", 12, 12},
                             {"sixteen", 16, 16},
                             {"many", 33, 33},
                             {"sixty_four", 64, 64},
                             {"two_and_one", 3, 2},
                             {"two_of_two", 4, 2},
                             {"three_and_two", 5, 2},
                             {"two_of_three", 6, 2},
                             {"two_of_five", 10, 2},
                             {"two_of_six", 12, 2},
                             {"three_of_two", 6, 3},
                             {"three_of_four", 12, 3},
                             {"five_of_two", 10, 5},
                             {"six_of_two", 12, 6},
                             {"four_of_five", 20, 4},
                             {"two_of_four", 8, 2},
                             {"unequal", 7, 3},
                             {"four_and_three", 7, 2},
                             {"four_of_four", 16, 4},
                             {"eight_of_four", 32, 8},
                             {"eight_of_eight", 64, 8},
                             {"node_of_two", 2, 1},
                             {"node_of_three", 3, 1},
                             {"node_of_four", 4, 1},
                             {"node_of_eight", 8, 1},
                             {"node_of_sixteen", 16, 1}};
struct Kind {
  const char* name;
  Result result;
  bool wide = false;  // 16-bit floats
};
constexpr Kind kKinds[] = {{"allreduce", Result::sum},
                           {"allreduce_16", Result::sum, true},
                           {"reducescatter_16", Result::own_sum, true},
                           {"reduce_16", Result::root_sum, true},
                           {"broadcast", Result::root_value},
                           {"allgather", Result::concatenation},
                           {"reducescatter", Result::own_sum},
                           {"scatter", Result::own_value},
                           {"reduce", Result::root_sum},
                           {"gather", Result::root_concatenation},
                           {"alltoall", Result::exchange}};
// The limits fit the few worst places, for which another rule is not worth it. 16-bit floats have
// one larger step. It lies at the measured limit for many ranks that send to one rank at once. Each
// half of halving and doubling sends sums of float32 there.
struct Tolerance {
  double least_growth = 0.88, most_growth = 2.31;
  double group = 1.025;
  // Data in messages is written once for each reader, and a view once. So a broadcast to 15 readers
  // may take less time for a view of more data.
  double least_growth_to_view = 0.75;
};
constexpr Tolerance kUsual, kOfWide{.most_growth = 2.85, .group = 1.11};
// The choice costs at most so many times as much as the cheapest candidate of the model.
constexpr double kMostLost = 1.1;
constexpr uint64_t kLeast = 256, kMost = 16 << 20;
constexpr int kRanksCompared = 16, kRanksOfLarge = 16;

// All places with all kinds. Without kAllLargeWorlds, each kind has every fourth large place.
std::vector<std::tuple<Place, Kind>> cells() {
  std::vector<std::tuple<Place, Kind>> all;
  std::size_t larger = 0;
  for (const Place& place : kPlaces) {
    const bool is_large = place.ranks >= kRanksOfLarge;
    if (is_large) ++larger;
    for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
      if (kAllLargeWorlds || !is_large || (larger + kind) % 4 == 0) {
        all.emplace_back(place, kKinds[kind]);
      }
    }
  }
  return all;
}

// Data that leaves the caches of a node takes longer, and no cut is the reason.
LinkModel without_caches(LinkModel links) {
  NodeMemory& memory = links.memory;
  for (MemoryRate* rate : {&memory.copy, &memory.reduce}) {
    rate->beyond = rate->cached;
    rate->beyond_all = 1e15;
  }
  return links;
}

class Chosen : public testing::TestWithParam<std::tuple<Place, Kind>> {
 protected:
  Chosen()
      : place_(std::get<0>(GetParam())),
        result_(std::get<1>(GetParam()).result),
        wide_(std::get<1>(GetParam()).wide),
        nodes_(even_nodes(place_.ranks, place_.nodes)),
        spread_(shape()) {}

  // In an alltoall, each rank has `bytes`.
  Choice choice(uint64_t bytes, const LinkModel& links) const {
    return choose(result_, tuning_for(links), facts(bytes));
  }
  Facts facts(uint64_t bytes) const {
    const uint64_t times = result_ == Result::exchange ? place_.ranks : 1;
    return {.ranks = place_.ranks,
            .one_node = place_.nodes == 1,
            .bytes = bytes * times,
            .wide_sums = wide_,
            .spread = spread_,
            .is_even = true};
  }
  Shape shape() const { return {.ranks = place_.ranks, .nodes = nodes_, .wide_sums = wide_}; }
  const Tolerance& tolerance() const { return wide_ ? kOfWide : kUsual; }
  double time_of(Algorithm algorithm, uint64_t bytes, const LinkModel& links) {
    // Several tests need the same times.
    static std::map<std::tuple<std::string, Algorithm, bool, double, double, uint64_t>, double>
        times;
    const std::string cell = cat(place_.name, " ", std::get<1>(GetParam()).name);
    const double rate = links.network.bytes_per_us;
    const auto [known, is_new] =
        times.try_emplace({cell, algorithm, links.via_nic, rate, links.memory.copy.beyond, bytes});
    if (!is_new) return known->second;
    auto& schedules = schedules_[{algorithm, links.via_nic}];
    if (schedules.empty()) schedules = lowered_schedules(algorithm, shape(), links, false);
    const uint64_t row = row_bytes(result_, schedules.front(), bytes);
    const uint64_t segment_bytes = segment_bytes_of(algorithm, tuning_for(links), facts(bytes));
    return known->second = cost_of(schedules, nodes_, links, row, segment_bytes).time_us;
  }

  bool is_candidate(const AlgorithmRow& row, uint64_t bytes, const LinkModel& links) const {
    return why_no_candidate(row, tuning_for(links), facts(bytes)).empty() &&
           !std::isinf(formula_us(row, tuning_for(links), facts(bytes)));
  }

  // Expects that no other candidate is clearly cheaper than the choice.
  void expect_best(uint64_t bytes, const LinkModel& links) {
    const Algorithm chosen = choice(bytes, links).algorithm;
    const double mine = time_of(chosen, bytes, links);
    for (const AlgorithmRow& row : algorithm_table()) {
      if (row.result != result_ || row.algorithm == chosen) continue;
      if (!is_candidate(row, bytes, links)) continue;
      EXPECT_LE(mine, kMostLost * time_of(row.algorithm, bytes, links))
          << name_of(chosen) << " instead of " << row.name << " for " << bytes << " bytes";
    }
  }

  const Place place_;
  const Result result_;
  const bool wide_;
  const std::vector<int> nodes_;
  const Spread spread_;
  std::map<std::pair<Algorithm, bool>, std::vector<Schedule>> schedules_;
};

// No cut may show as a jump.
TEST_P(Chosen, takes_longer_for_more_and_no_more_than_that) {
  if (kSanitized && place_.ranks > 8) return;
  for (const LinkModel& links : {without_caches(kNicLinks), without_caches(kSocketLinks)}) {
    double before = 0;
    for (uint64_t bytes = kLeast; bytes <= kMost; bytes *= 2) {
      const double here = time_of(choice(bytes, links).algorithm, bytes, links);
      if (bytes > kLeast) {
        const bool is_view = bytes == 2 * links.memory.data_bytes;
        const double least = is_view ? tolerance().least_growth_to_view : tolerance().least_growth;
        EXPECT_GE(here, least * before) << bytes << ": " << name_of(choice(bytes, links).algorithm);
        EXPECT_LE(here, tolerance().most_growth * before)
            << bytes << ": " << name_of(choice(bytes, links).algorithm);
      }
      before = here;
    }
  }
}

TEST_P(Chosen, costs_little_more_than_the_cheapest) {
  if (place_.ranks > (kSanitized ? 8 : kRanksCompared)) return;
  for (const LinkModel& links : {kNicLinks, kSocketLinks}) {
    for (uint64_t bytes = kLeast; bytes <= kMost; bytes *= 4) expect_best(bytes, links);
  }
}

// The closed forms are those of the schedules. They count no work of halving and doubling that
// other segments do meanwhile.
TEST_P(Chosen, has_closed_forms_within_a_node_that_agree_with_the_executed_schedules) {
  if (place_.nodes > 1 || place_.ranks > (kSanitized ? 8 : kRanksCompared)) return;
  for (uint64_t bytes = 8; bytes <= kMost; bytes *= 4) {
    for (const AlgorithmRow& row : algorithm_table()) {
      if (row.result != result_) continue;
      if (!is_candidate(row, bytes, kNicLinks)) continue;
      const double formula = formula_us(row, tuning_for(kNicLinks), facts(bytes));
      const double executed = time_of(row.algorithm, bytes, kNicLinks);
      EXPECT_GE(formula, 0.87 * executed) << row.name << ", " << bytes;
      EXPECT_LE(formula, 1.3 * executed) << row.name << ", " << bytes;
    }
  }
}

// Between nodes, too. Segments of a few ranks that exchange everything differ most.
TEST_P(Chosen, has_traffic_between_nodes_that_agrees_with_the_executed_schedules) {
  if (place_.nodes == 1 || place_.ranks > (kSanitized ? 8 : kRanksCompared)) return;
  for (const LinkModel& links : {kNicLinks, kSocketLinks}) {
    for (uint64_t bytes = 8; bytes <= kMost; bytes *= 8) {
      for (const AlgorithmRow& row : algorithm_table()) {
        if (row.result != result_ || !is_candidate(row, bytes, links)) continue;
        const double formula = formula_us(row, tuning_for(links), facts(bytes));
        const double executed = time_of(row.algorithm, bytes, links);
        EXPECT_GE(formula, 0.85 * executed) << row.name << ", " << bytes;
        EXPECT_LE(formula, 1.5 * executed) << row.name << ", " << bytes;
      }
    }
  }
}

TEST_P(Chosen, is_hardly_slower_than_any_other_for_many_ranks) {
  if (place_.nodes == 1 || place_.ranks <= kRanksCompared || kSanitized) return;
  for (const LinkModel& links : {kNicLinks, kSocketLinks}) {
    for (uint64_t bytes = kLeast; bytes <= kMost; bytes *= 8) {
      expect_best(bytes, links);
    }
  }
}

// The group has eight tensors, which travel as one. The tolerance exists because cuts are at
// powers of two.
TEST_P(Chosen, takes_no_longer_for_a_group_than_for_its_tensors_one_after_the_other) {
  const bool has_groups = result_ == Result::sum || result_ == Result::root_value ||
                          result_ == Result::concatenation || result_ == Result::own_sum;
  if (!has_groups || (kSanitized && place_.ranks > 8)) return;
  for (const LinkModel& links : {without_caches(kNicLinks), without_caches(kSocketLinks)}) {
    for (uint64_t bytes = kLeast; bytes <= kMost / 8; bytes *= 2) {
      const double single = time_of(choice(bytes, links).algorithm, bytes, links);
      const double group = time_of(choice(8 * bytes, links).algorithm, 8 * bytes, links);
      EXPECT_LE(group, tolerance().group * 8 * single)
          << name_of(choice(bytes, links).algorithm) << ", "
          << name_of(choice(8 * bytes, links).algorithm) << ", " << bytes << " bytes each";
    }
  }
}

// Links that are slower than the usual ones.
TEST_P(Chosen, is_hardly_slower_over_slow_links) {
  if (place_.nodes == 1 || wide_ || kSanitized) return;
  LinkModel slow_tcp = kSocketLinks, slow_rdma = kNicLinks;
  slow_tcp.network.bytes_per_us /= 10;
  slow_rdma.network.bytes_per_us /= 4;
  for (const LinkModel& links : {slow_tcp, slow_rdma}) {
    schedules_.clear();
    for (uint64_t bytes = kLeast; bytes <= kMost; bytes *= 4) {
      expect_best(bytes, links);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(places, Chosen, testing::ValuesIn(cells()), [](const auto& info) {
  return cat(std::get<0>(info.param).name, "_", std::get<1>(info.param).name);
});

TEST(ChosenCells, have_every_kind_at_two_large_places_or_more) {
  std::map<std::string, int> places;
  for (const auto& [place, kind] : cells()) places[kind.name] += place.ranks >= kRanksOfLarge;
  EXPECT_EQ(places.size(), std::size(kKinds));
  for (const auto& [kind, count] : places) EXPECT_GE(count, 2) << kind;
}

Facts between_nodes(int ranks, uint64_t bytes) {
  return {.ranks = ranks, .one_node = false, .bytes = bytes};
}

TEST(Choice, is_the_servers_where_there_are_any) {
  for (const bool one_node : {true, false}) {
    for (const bool canonical : {true, false}) {
      for (const uint64_t bytes : {8u, 1u << 16, 1u << 30}) {
        Facts facts{.ranks = 5, .one_node = one_node, .bytes = bytes, .canonical = canonical};
        facts.servers = 2;
        const Choice choice = choose(Result::sum, {}, facts);
        EXPECT_EQ(choice.algorithm, named::parameter_server);
        EXPECT_TRUE(adds_in_canonical_order(choice, facts));
      }
    }
  }
  const Facts facts{.ranks = 5, .bytes = 100, .servers = 2};
  EXPECT_EQ(choose(Result::root_value, {}, facts).algorithm, named::flat_broadcast);
}

// A process set of one rank moves nothing, and may still use the network.
TEST(Choice, of_a_single_rank_is_any_row) {
  for (int result = 0; result <= static_cast<int>(Result::exchange); ++result) {
    for (const bool one_node : {false, true}) {
      Facts facts = between_nodes(1, 1 << 20);
      facts.one_node = one_node;
      Choices choices;
      EXPECT_EQ(row_of(choices.choose(Result(result), Tuning(), facts).algorithm)->result,
                Result(result));
    }
  }
}

TEST(Choice, is_forced_by_size) {
  const std::vector<Forced> forced = {
      {named::ring, 1000}, {std::nullopt, 2000}, {named::halving_doubling, UINT64_MAX}};
  const auto chosen = [&](uint64_t bytes) {
    Facts facts = between_nodes(5, bytes);
    facts.forced = forced;
    return choose(Result::sum, {}, facts).algorithm;
  };
  EXPECT_EQ(chosen(1), named::ring);
  EXPECT_EQ(chosen(1000), named::ring);
  const Algorithm free = choose(Result::sum, {}, between_nodes(5, 1001)).algorithm;
  EXPECT_NE(free, named::ring);
  EXPECT_EQ(chosen(1001), free);
  EXPECT_EQ(chosen(2001), named::halving_doubling);
  EXPECT_EQ(chosen(1 << 30), named::halving_doubling);
}

TEST(Choice, by_nodes_keeps_canonical_order_or_is_left) {
  for (const bool is_power : {true, false}) {
    const std::vector<int> nodes = even_nodes(is_power ? 8 : 6, 2);
    const Shape shape{.ranks = static_cast<int>(nodes.size()), .nodes = nodes};
    const std::vector<Forced> forced = {{named::two_level, UINT64_MAX}};
    for (const bool is_forced : {false, true}) {
      Facts facts = between_nodes(shape.ranks, 1 << 20);
      facts.canonical = true;
      facts.spread = Spread(shape);
      if (is_forced) facts.forced = forced;
      const Choice choice = choose(Result::sum, {}, facts);
      EXPECT_EQ(choice.algorithm == named::two_level, is_power);
      EXPECT_TRUE(is_canonical(choice.algorithm, shape));
    }
  }
}

TEST(Choice, over_tcp_lets_few_hosts_send_to_one_at_once_where_it_is_a_lot) {
  const auto chosen = [](int ranks, uint64_t bytes, bool canonical) {
    Facts facts = between_nodes(ranks, bytes);
    facts.canonical = canonical;
    return choose(Result::sum, tuning_for(kSocketLinks), facts).algorithm;
  };
  for (const bool canonical : {false, true}) {
    for (const uint64_t bytes : {512u << 10, 1u << 20, 4u << 20}) {
      const bool is_direct = canonical || bytes <= 512 << 10;
      EXPECT_EQ(chosen(6, bytes, canonical), is_direct ? named::direct : named::ring);
      EXPECT_EQ(chosen(8, bytes, canonical), named::halving_doubling);
    }
    EXPECT_EQ(chosen(8, 256 << 10, canonical), named::direct);
  }
  EXPECT_EQ(chosen(7, 1 << 20, false), named::ring);
  EXPECT_EQ(chosen(7, 1 << 20, true), named::halving_doubling);
}

TEST(Choice, between_many_nodes_has_rounds_that_grow_with_the_logarithm) {
  for (const Tuning& tuning : {tuning_for(kNicLinks), tuning_for(kSocketLinks)}) {
    const auto chosen = [&tuning](int ranks, uint64_t bytes) {
      return choose(Result::sum, tuning, between_nodes(ranks, bytes)).algorithm;
    };
    EXPECT_EQ(chosen(63, 64 << 20), named::ring);
    for (const int ranks : {144, 256, 1000, 1024}) {
      for (const uint64_t bytes : {1u << 20, 16u << 20, 1u << 30}) {
        EXPECT_EQ(chosen(ranks, bytes), named::halving_doubling) << ranks << " " << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace rdmacoll
