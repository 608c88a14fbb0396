// The allreduce by leaders of nodes, for nodes of all sizes.
#include <gtest/gtest.h>

#include <algorithm>

#include "algorithm_names.h"
#include "base/text.h"
#include "collectives/choose.h"
#include "unit/schedules.h"

namespace rdmacoll {
namespace {

const AlgorithmRow& leaders() { return *row_of(named::leaders); }

TEST(Leaders, are_right_for_nodes_of_any_sizes_and_any_order_of_ranks) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    const std::vector<int> nodes = random_nodes(seed);
    const Shape shape{.ranks = static_cast<int>(nodes.size()),
                      .prescaled = seed % 5 == 0,
                      .nodes = nodes,
                      .wide_sums = seed % 3 == 0};
    ASSERT_EQ(verified(leaders(), schedules_of(leaders(), shape), shape), "")
        << "seed " << seed << ": nodes " << join(nodes, " ");
  }
}

TEST(Leaders, add_in_canonical_order_where_nodes_are_powers_of_two_of_consecutive_ranks) {
  for (int ranks = 1; ranks <= 33; ++ranks) {
    for (const int per_node : {1, 2, 4, 8}) {
      const std::vector<int> nodes = nodes_of(ranks, per_node);
      const Shape shape{.ranks = ranks, .nodes = nodes};
      EXPECT_TRUE(leaders().is_canonical(shape)) << ranks;
      EXPECT_EQ(verify(schedules_of(leaders(), shape), AlgorithmRow::Result::sum, 0, true), "");
    }
  }
  const std::vector<int> nodes{0, 0, 0, 1, 1, 1};
  EXPECT_FALSE(leaders().is_canonical({.ranks = 6, .nodes = nodes}));
}

TEST(Leaders, send_one_message_a_round_for_their_whole_node) {
  const std::vector<int> nodes = even_nodes(32, 4);
  for (const Schedule& schedule : schedules_of(leaders(), {.ranks = 32, .nodes = nodes})) {
    const auto across = std::ranges::count_if(schedule.steps, [&](const Step& step) {
      return sends(step.verb) && nodes[step.peer] != nodes[schedule.rank];
    });
    EXPECT_EQ(across, schedule.rank % 8 == 0 ? 2 : 0) << "rank " << schedule.rank;
  }
}

// The ranks of a node would share its port.
TEST(Leaders, are_chosen_for_little_data_of_several_ranks_on_each_node) {
  for (const int per_node : {2, 4, 8}) {
    const std::vector<int> nodes = even_nodes(4 * per_node, 4);
    const Shape shape{.ranks = 4 * per_node, .nodes = nodes};
    Facts facts{.ranks = shape.ranks, .one_node = false, .bytes = 8, .canonical = true};
    facts.spread = Spread(shape);
    const Tuning tuning = tuning_for(usual_links(false, 10));
    EXPECT_EQ(choose(AlgorithmRow::Result::sum, tuning, facts).algorithm, named::leaders)
        << per_node;
  }
}

}  // namespace
}  // namespace rdmacoll
