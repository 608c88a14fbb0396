// The order of ranks in a ring, for any placement of the ranks.
#include "collectives/ring_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "algorithm_names.h"
#include "collectives/cost.h"
#include "collectives/verify.h"

namespace rdmacoll {
namespace {

using Ranks = std::vector<int>;

struct Placed {
  const char* what;
  Ranks nodes, numa_nodes, order;
};
const Placed kPlaced[] = {
    {"nothing is known", {}, {}, {0, 1, 2, 3}},
    {"node after node", {0, 0, 1, 1}, {}, {0, 1, 2, 3}},
    {"a rank a node", {0, 1, 2, 3}, {0, 1, 0, 1}, {0, 1, 2, 3}},
    {"in turns on two nodes", {0, 1, 0, 1}, {}, {0, 2, 1, 3}},
    {"in turns on two sockets", {0, 0, 0, 0}, {0, 1, 0, 1}, {0, 2, 1, 3}},
    {"in turns on sockets of two nodes",
     {0, 0, 0, 0, 1, 1, 1, 1},
     {0, 1, 0, 1, 0, 1, 0, 1},
     {0, 2, 1, 3, 4, 6, 5, 7}},
    {"in turns on both", {0, 1, 0, 1, 0, 1}, {1, 1, 0, 0, 1, 1}, {2, 0, 4, 3, 1, 5}},
    {"bound to no socket", {0, 0, 0}, {-1, -1, -1}, {0, 1, 2}},
    {"one bound to none", {0, 0, 0, 0}, {1, 0, -1, 0}, {2, 1, 3, 0}},
};

TEST(RingOrder, has_the_ranks_of_a_node_and_of_a_socket_side_by_side) {
  for (const Placed& placed : kPlaced) {
    const Shape shape{.ranks = static_cast<int>(placed.order.size()),
                      .nodes = placed.nodes,
                      .numa_nodes = placed.numa_nodes};
    EXPECT_EQ(ring_order(shape), placed.order) << placed.what;
  }
}

TEST(RingOrder, is_one_ring_that_all_ranks_agree_on) {
  for (const Placed& placed : kPlaced) {
    const int ranks = static_cast<int>(placed.order.size());
    Ranks seen;
    for (int rank = 0; seen.size() < placed.order.size();) {
      seen.push_back(rank);
      Shape shape{.ranks = ranks, .nodes = placed.nodes, .numa_nodes = placed.numa_nodes};
      shape.rank = rank;
      const Ring mine(shape);
      EXPECT_EQ(mine.back(0), rank);
      EXPECT_EQ(mine.back(2 * ranks), rank);
      shape.rank = mine.next();
      EXPECT_EQ(Ring(shape).previous(), rank) << placed.what;
      rank = shape.rank;
    }
    std::sort(seen.begin(), seen.end());
    Ranks all(placed.order.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all) << placed.what;
  }
}

TEST(RingOrder, gives_right_results) {
  for (const Placed& placed : kPlaced) {
    for (const AlgorithmRow& row : algorithm_table()) {
      if (!std::string_view(row.name).starts_with("ring")) continue;
      std::vector<Schedule> schedules;
      for (int rank = 0; rank < static_cast<int>(placed.order.size()); ++rank) {
        Shape shape{.ranks = static_cast<int>(placed.order.size()),
                    .rank = rank,
                    .nodes = placed.nodes,
                    .numa_nodes = placed.numa_nodes};
        schedules.push_back(row.make(shape));
      }
      EXPECT_EQ(verify(schedules, row.result, 0, false), "") << row.name << ", " << placed.what;
    }
  }
}

// Ranks are on the nodes in turns, as a launcher places them by node. A ring in the order of their
// numbers would send all data through the nodes' ports.
TEST(RingOrder, costs_the_same_wherever_the_ranks_of_a_node_are) {
  for (const int nodes : {2, 3, 4}) {
    for (const int ranks : {8, 12}) {
      Ranks in_turns;
      for (int rank = 0; rank < ranks; ++rank) in_turns.push_back(rank % nodes);
      const auto time_of = [&](const Ranks& where) {
        const auto schedules =
            lowered_schedules(named::ring, {.ranks = ranks, .nodes = where}, kSocketLinks, true);
        return cost_of(schedules, where, kSocketLinks, 64 << 20, 1 << 20).time_us;
      };
      const double one_after_the_other = time_of(even_nodes(ranks, nodes));
      EXPECT_NEAR(time_of(in_turns), one_after_the_other, 0.1 * one_after_the_other)
          << ranks << " ranks on " << nodes << " nodes";
    }
  }
}

}  // namespace
}  // namespace rdmacoll
