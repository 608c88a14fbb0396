// The allreduce by nodes, for nodes of all sizes.
#include <gtest/gtest.h>

#include "algorithm_names.h"
#include "base/text.h"
#include "unit/schedules.h"

namespace rdmacoll {
namespace {

constexpr auto kTwoLevel = named::two_level;

const AlgorithmRow& two_level() { return *row_of(kTwoLevel); }

TEST(TwoLevel, is_right_for_nodes_of_any_sizes_and_any_order_of_ranks) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    const std::vector<int> nodes = random_nodes(seed);
    const Shape shape{
        .ranks = static_cast<int>(nodes.size()), .nodes = nodes, .wide_sums = seed % 3 == 0};
    ASSERT_EQ(verified(two_level(), schedules_of(two_level(), shape), shape), "")
        << "seed " << seed << ": nodes " << join(nodes, " ");
  }
}

TEST(TwoLevel, is_canonical_where_nodes_are_powers_of_two_of_consecutive_ranks) {
  for (int ranks = 1; ranks <= 33; ++ranks) {
    for (const int per_node : {1, 2, 4, 8}) {
      const std::vector<int> nodes = nodes_of(ranks, per_node);
      EXPECT_TRUE(is_canonical(kTwoLevel, {.ranks = ranks, .nodes = nodes})) << ranks;
    }
  }
  for (const std::vector<int>& nodes : std::vector<std::vector<int>>{
           {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 1}, {0, 0, 1, 1, 0}, {0, 0, 1, 2, 2}}) {
    const Shape shape{.ranks = static_cast<int>(nodes.size()), .nodes = nodes};
    EXPECT_FALSE(is_canonical(kTwoLevel, shape)) << join(nodes, " ");
    // The verifier does not accept the schedules as canonical, either.
    EXPECT_NE(verify(schedules_of(two_level(), shape), AlgorithmRow::Result::sum, 0, true), "")
        << join(nodes, " ");
  }
}

// Parts that each rank sends to other nodes, those of wide sums twice.
std::vector<int> parts_across(const Shape& shape) {
  std::vector<int> parts(shape.ranks, 0);
  for (const Schedule& schedule : schedules_of(two_level(), shape)) {
    for (const Step& step : schedule.steps) {
      if (sends(step.verb) && shape.node_of(step.peer) != shape.node_of(schedule.rank)) {
        parts[schedule.rank] += step.to.parts * width(step.to);
      }
    }
  }
  return parts;
}

TEST(TwoLevel, ranks_of_a_node_share_what_goes_to_other_nodes) {
  const std::vector<int> nodes = even_nodes(16, 4);
  const std::vector<int> parts = parts_across({.ranks = 16, .nodes = nodes});
  for (const int part : parts) EXPECT_EQ(part, parts[0]);
  const std::vector<int> unequal = {0, 0, 0, 1, 1, 1, 1, 1};
  const std::vector<int> sent = parts_across({.ranks = 8, .nodes = unequal});
  for (int rank = 1; rank < 3; ++rank) EXPECT_EQ(sent[rank], sent[0]);
  for (int rank = 4; rank < 8; ++rank) EXPECT_EQ(sent[rank], sent[3]);
  EXPECT_EQ(sent[0] * 3, sent[3] * 5);  // each node sends as much as the other
}

// Sums go out in float32, and results come back in 16 bits.
TEST(TwoLevel, of_16_bit_floats_sends_half_as_much_again) {
  const std::vector<int> nodes = even_nodes(16, 4);
  const std::vector<int> plain = parts_across({.ranks = 16, .nodes = nodes});
  const std::vector<int> wide = parts_across({.ranks = 16, .nodes = nodes, .wide_sums = true});
  for (int rank = 0; rank < 16; ++rank) EXPECT_EQ(2 * wide[rank], 3 * plain[rank]);
}

}  // namespace
}  // namespace rdmacoll
