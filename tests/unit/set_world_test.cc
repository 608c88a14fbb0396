// The ranks of a set, their ranks in the job, and the control tree over them.
#include "base/set_world.h"

#include <gtest/gtest.h>

#include <concepts>
#include <vector>

namespace rdmacoll {
namespace {

// A rank becomes a number, or a number a rank, only in sight.
static_assert(!std::convertible_to<int, SetRank> && !std::convertible_to<SetRank, int>);
static_assert(!std::constructible_from<SetRank, JobRank>);
static_assert(!std::equality_comparable_with<SetRank, JobRank>);
static_assert(!std::equality_comparable_with<SetRank, int>);
static_assert(sizeof(SetRank) == sizeof(int));

TEST(Rank, is_none_until_it_is_given) {
  EXPECT_TRUE(SetRank().is_none());
  EXPECT_EQ(SetRank().value(), -1);
  EXPECT_FALSE(SetRank(0).is_none());
  EXPECT_LT(SetRank(), SetRank(0));
}

TEST(SetMembers, know_their_ranks_in_the_job) {
  const SetMembers members({JobRank(1), JobRank(4), JobRank(5)});
  EXPECT_EQ(members.size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(members.find(members[SetRank(rank)]), SetRank(rank));
  }
  for (int outside : {-1, 0, 2, 3, 6}) {
    EXPECT_TRUE(members.find(JobRank(outside)).is_none()) << outside;
  }
}

TEST(SetWorld, names_its_ranks_by_their_numbers_in_the_job) {
  World world{"job", 1, 1, {{"node3", 103, 0}, {"node7", 107, 0}}, " of process set 2"};
  world.members[0].number = JobRank(3);
  world.members[1].number = JobRank(7);
  const SetWorld set(world);
  EXPECT_EQ(set.rank(), SetRank(1));
  EXPECT_FALSE(set.is_root() || set.is_server());
  EXPECT_TRUE(set.is_one_node());
  EXPECT_EQ(set.number(SetRank(1)), JobRank(7));
  EXPECT_EQ(set.describe(SetRank(1)), "rank 7 (node7, pid 107)");
  world.rank = 2;
  EXPECT_TRUE(SetWorld(world).is_server());
}

TEST(SetWorld, has_the_tree_of_its_numbers) {
  EXPECT_TRUE(tree_parent(kTreeRoot).is_none());
  for (int rank = 0; rank < 300; ++rank) {
    for (SetRank child : tree_children(SetRank(rank), 300)) {
      EXPECT_EQ(tree_parent(child), SetRank(rank));
    }
    const std::vector<int> numbers = tree_subtree(rank, 300);
    EXPECT_EQ(tree_subtree(SetRank(rank), 300),
              std::vector<SetRank>(numbers.begin(), numbers.end()));
  }
}

}  // namespace
}  // namespace rdmacoll
