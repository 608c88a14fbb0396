// The process sets that may exist. Their lanes and memory never overlap.
#include "engine/set_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace rdmacoll {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBytes = 64 << 20;

Status add(SetTable& table, const std::vector<int>& ranks, uint32_t& number) {
  return table.add({ranks.begin(), ranks.end()}, number);
}

TEST(SetTable, refuses_what_is_no_set) {
  SetTable table(4, kBytes);
  uint32_t number = 0;
  EXPECT_THAT(add(table, {}, number).message(), HasSubstr("at least one rank"));
  EXPECT_THAT(
      add(table, {0, 4}, number).message(),
      HasSubstr("4 is no rank of this world: 0 to 3 are. Start 5 or more, or leave it out."));
  SetTable alone(1, kBytes);
  EXPECT_THAT(add(alone, {0, 2}, number).message(),
              HasSubstr("2 is no rank of this world: only 0 is. Start 3 or more"));
  EXPECT_THAT(add(table, {-1}, number).message(), HasSubstr("-1 is no rank"));
  EXPECT_THAT(add(table, {1, 1}, number).message(), HasSubstr("each rank once"));
  EXPECT_THAT(add(table, {2, 1}, number).message(), HasSubstr("ascending"));
  EXPECT_THAT(add(table, {0, 1, 2, 3}, number).message(), HasSubstr("global_process_set"));
  ASSERT_TRUE(add(table, {0, 2}, number).ok());
  EXPECT_EQ(number, 1u);
  EXPECT_THAT(add(table, {0, 2}, number).message(), HasSubstr("exists already, as number 1"));
}

TEST(SetTable, numbers_are_never_given_twice_and_lanes_are) {
  SetTable table(4, kBytes);
  uint32_t first = 0, second = 0, third = 0;
  ASSERT_TRUE(add(table, {0, 1}, first).ok());
  const std::size_t lane = table.find(first)->lanes.first;
  ASSERT_TRUE(add(table, {1, 2}, second).ok());
  table.remove(first);
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_TRUE(table.was_added(first));
  ASSERT_TRUE(add(table, {0, 1}, third).ok());
  EXPECT_EQ(third, 3u);
  EXPECT_EQ(table.find(third)->lanes.first, lane);
  EXPECT_FALSE(table.was_added(4));
}

TEST(SetTable, every_set_has_lanes_of_its_own_until_there_are_no_more) {
  SetTable table(64, kBytes);
  std::set<std::size_t> lanes;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kBatchesInFlight); ++i) lanes.insert(i);
  uint32_t number = 0;
  int sets = 0;
  for (int a = 0; a < 64 && sets < kSetsMax; ++a) {
    for (int b = a + 1; b < 64 && sets < kSetsMax; ++b, ++sets) {
      ASSERT_TRUE(add(table, {a, b}, number).ok());
      const Lanes own = table.find(number)->lanes;
      for (std::size_t i = 0; i < own.count; ++i) {
        EXPECT_TRUE(lanes.insert(own.first + i).second) << own.first + i;
      }
    }
  }
  EXPECT_LE(*lanes.rbegin(), static_cast<std::size_t>(kLanesMax) - 1);
  EXPECT_THAT(add(table, {60, 61, 62}, number).message(), HasSubstr("126 process sets already"));
  table.remove(5);
  EXPECT_TRUE(add(table, {60, 61, 62}, number).ok());
}

TEST(SetTable, the_sets_of_a_rank_have_no_more_memory_than_there_is_for_them) {
  SetTable table(64, kBytes);
  uint64_t together = 0, alone = 0;
  for (int rank = 1; rank < 50; ++rank) {
    uint32_t number = 0;
    ASSERT_TRUE(add(table, {0, rank}, number).ok());
    together += table.find(number)->bytes;
  }
  EXPECT_LT(together, kBytes);
  uint32_t number = 0;
  ASSERT_TRUE(add(table, {62, 63}, number).ok());  // their first set
  alone = table.find(number)->bytes;
  EXPECT_EQ(alone, kBytes / 16);
}

}  // namespace
}  // namespace rdmacoll
