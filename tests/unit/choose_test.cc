// What is chosen, held against the cost model: no cut may show as a jump.
#include "collectives/choose.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "collectives/cost.h"

namespace rdmacoll {
namespace {

struct Place {
  const char* name;
  int ranks, nodes;
};
constexpr Place kPlaces[] = {{"pair", 2, 2},          {"three", 3, 3},         {"four", 4, 4},
                             {"eight", 8, 8},         {"sixteen", 16, 16},     {"two_of_two", 4, 2},
                             {"two_of_four", 8, 2},   {"four_of_four", 16, 4}, {"unequal", 7, 3},
                             {"five_of_eight", 40, 5}};

class Chosen : public testing::TestWithParam<Place> {
 protected:
  Chosen() : nodes_(even_nodes(GetParam().ranks, GetParam().nodes)) {}

  Facts facts(uint64_t bytes) const {
    return {.ranks = GetParam().ranks,
            .one_node = GetParam().nodes == 1,
            .bytes = bytes,
            .spread = Spread(shape())};
  }
  Shape shape() const { return {.ranks = GetParam().ranks, .nodes = nodes_}; }
  double time_of(Algorithm algorithm, uint64_t bytes, const LinkModel& links) const {
    return cost_of(lowered_schedules(algorithm, shape(), links, false), nodes_, links, bytes,
                   segment_bytes_of(algorithm, {}, facts(bytes)))
        .time_us;
  }

  std::vector<int> nodes_;
};

using Chooser = Choice (*)(const Tuning&, const Facts&);
constexpr Chooser kChoosers[] = {choose_allreduce, choose_broadcast, choose_allgather};

TEST_P(Chosen, time_grows_with_size_and_jumps_at_no_cut) {
  for (const LinkModel& links : {kRdmaLinks, kTcpLinks}) {
    for (const Chooser choose : kChoosers) {
      const auto time_at = [&](uint64_t bytes) {
        return time_of(choose({}, facts(bytes)).algorithm, bytes, links);
      };
      for (uint64_t bytes = 1 << 10; bytes < 8 << 20; bytes *= 2) {
        const double here = time_at(bytes);
        const std::string which =
            cat(bytes, " bytes: ", name_of(choose({}, facts(bytes)).algorithm), ", then ",
                name_of(choose({}, facts(bytes + 64)).algorithm));
        // Right behind a cut, where the numbers for all fabrics are a compromise.
        EXPECT_GE(time_at(bytes + 64), 0.7 * here) << which;
        EXPECT_LE(time_at(bytes + 64), 1.9 * here) << which;
        EXPECT_GE(time_at(2 * bytes), 0.8 * here) << which;
        EXPECT_LE(time_at(2 * bytes), 2.4 * here) << which;
      }
    }
  }
}

// Where nodes have several ranks, what knows of nodes is no slower than what does not.
TEST_P(Chosen, by_nodes_is_never_slower_than_flat) {
  for (const LinkModel& links : {kRdmaLinks, kTcpLinks}) {
    for (uint64_t bytes = 16 << 10; bytes <= 64 << 20; bytes *= 4) {
      const Choice choice = choose_allreduce({}, facts(bytes));
      EXPECT_EQ(choice.algorithm == Algorithm::two_level, facts(bytes).spread.shares_nodes);
      if (choice.algorithm != Algorithm::two_level) continue;
      for (const Algorithm flat : {Algorithm::recursive_doubling, Algorithm::halving_doubling,
                                   Algorithm::direct, Algorithm::ring}) {
        EXPECT_LE(time_of(Algorithm::two_level, bytes, links), 1.2 * time_of(flat, bytes, links))
            << name_of(flat) << " of " << bytes << " bytes";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(places, Chosen, testing::ValuesIn(kPlaces),
                         [](const auto& info) { return std::string(info.param.name); });

Facts between_nodes(int ranks, uint64_t bytes) {
  return {.ranks = ranks, .one_node = false, .bytes = bytes};
}

TEST(Choice, is_forced_by_size) {
  const std::vector<Forced> forced = {
      {Algorithm::ring, 1000}, {std::nullopt, 2000}, {Algorithm::halving_doubling, UINT64_MAX}};
  const auto chosen = [&](uint64_t bytes) {
    Facts facts = between_nodes(5, bytes);
    facts.forced = forced;
    return choose_allreduce({}, facts).algorithm;
  };
  EXPECT_EQ(chosen(1), Algorithm::ring);
  EXPECT_EQ(chosen(1000), Algorithm::ring);
  EXPECT_EQ(chosen(1001), Algorithm::recursive_doubling);  // as if nothing were forced
  EXPECT_EQ(chosen(2001), Algorithm::halving_doubling);
  EXPECT_EQ(chosen(1 << 30), Algorithm::halving_doubling);
}

TEST(Choice, by_nodes_keeps_canonical_order_or_is_left) {
  for (const bool is_power : {true, false}) {
    const std::vector<int> nodes = even_nodes(is_power ? 8 : 6, 2);
    const Shape shape{.ranks = static_cast<int>(nodes.size()), .nodes = nodes};
    const std::vector<Forced> forced = {{Algorithm::two_level, UINT64_MAX}};
    for (const bool is_forced : {false, true}) {
      Facts facts = between_nodes(shape.ranks, 1 << 20);
      facts.canonical = true;
      facts.spread = Spread(shape);
      if (is_forced) facts.forced = forced;
      const Choice choice = choose_allreduce({}, facts);
      EXPECT_EQ(choice.algorithm == Algorithm::two_level, is_power);
      EXPECT_TRUE(is_canonical(choice.algorithm, shape));
    }
  }
}

TEST(Choice, within_a_node_is_as_measured) {
  const Tuning tuning;
  for (const int ranks : {2, 3, 4, 8, 16}) {
    for (uint64_t bytes = 1; bytes < 1u << 30; bytes *= 2) {
      const Facts facts{.ranks = ranks, .bytes = bytes};
      EXPECT_EQ(choose_allreduce(tuning, facts).algorithm, bytes <= tuning.doubling_bytes_shared
                                                               ? Algorithm::recursive_doubling
                                                               : Algorithm::direct);
      EXPECT_EQ(choose_broadcast(tuning, facts).algorithm, Algorithm::binomial_broadcast);
      EXPECT_EQ(choose_allgather(tuning, facts).algorithm, Algorithm::ring_allgather);
    }
  }
}

}  // namespace
}  // namespace rdmacoll
