#include "base/world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace rdmacoll {
namespace {

World world_of(std::vector<int> nodes, int rank) {
  World world;
  world.rank = rank;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    world.members.push_back(
        {"node" + std::to_string(nodes[i]), 100 + static_cast<int>(i), nodes[i]});
  }
  return world;
}

TEST(World, counts_ranks_within_and_across_nodes) {
  // Node numbers are labels: they need not be small, sorted or contiguous blocks.
  const std::vector<int> nodes = {9, 4, 9, 4, 7};
  const int expected[][4] = {// local rank, local size, cross rank, cross size
                             {0, 2, 0, 3},
                             {0, 2, 1, 3},
                             {1, 2, 0, 3},
                             {1, 2, 1, 3},
                             {0, 1, 2, 3}};
  for (int rank = 0; rank < 5; ++rank) {
    const World world = world_of(nodes, rank);
    EXPECT_EQ(world.local_rank(), expected[rank][0]) << rank;
    EXPECT_EQ(world.local_size(), expected[rank][1]) << rank;
    EXPECT_EQ(world.cross_rank(), expected[rank][2]) << rank;
    EXPECT_EQ(world.cross_size(), expected[rank][3]) << rank;
  }
}

TEST(World, describes_a_member) {
  EXPECT_EQ(world_of({0, 1}, 0).describe(1), "rank 1 (node1, pid 101)");
  // In a part of a job, messages use the job's numbers.
  World part = world_of({0, 1}, 0);
  part.members[1].number = JobRank(7);
  EXPECT_EQ(part.describe(1), "rank 7 (node1, pid 101)");
  EXPECT_EQ(part.number(0), JobRank(0));
  EXPECT_EQ(world_of({0, 1}, 0).describe(7), "rank 7");
}

TEST(World, the_tree_reaches_every_rank_once) {
  for (int size : {1, 2, 16, 17, 18, 64, 273, 274, 1000}) {
    std::set<int> reached = {0};
    for (int rank = 0; rank < size; ++rank) {
      for (int child : tree_children(rank, size)) {
        EXPECT_EQ(tree_parent(child), rank);
        EXPECT_TRUE(reached.insert(child).second) << child;
      }
    }
    EXPECT_EQ(static_cast<int>(reached.size()), size);
  }
  EXPECT_EQ(tree_parent(0), -1);
}

TEST(World, up_to_seventeen_ranks_are_one_hop_from_the_root) {
  for (int rank = 1; rank <= kTreeRadix; ++rank) EXPECT_EQ(tree_parent(rank), 0);
  EXPECT_EQ(tree_parent(kTreeRadix + 1), 1);
}

TEST(World, a_subtree_is_a_rank_and_those_below_it_in_order) {
  const int size = 300;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<int> expected;
    for (int other = 0; other < size; ++other) {
      int above = other;
      while (above > rank) above = tree_parent(above);
      if (above == rank) expected.push_back(other);
    }
    EXPECT_EQ(tree_subtree(rank, size), expected) << rank;
  }
}

TEST(World, tells_who_shares_cpus) {
  struct Row {
    std::vector<std::vector<int>> cpus;  // one list for each rank of the node
    int ranks, together;                 // expected for rank 0
  };
  const std::vector<Row> rows = {
      {{{0, 1}, {0, 1}, {0, 1}}, 3, 2},  // bound to nothing
      {{{0}, {1}, {2}}, 1, 1},           // each to its own
      {{{0}, {1}, {0}, {1}}, 2, 1},      // two to each
      {{{0, 1}, {2, 3}, {0, 1}}, 2, 2},  // to sockets
      {{{0}, {0, 1, 2, 3}, {3}}, 2, 4},  // the second one may go elsewhere
      {{{0, 1, 2, 3}, {0}, {0}, {9}}, 3, 4}};
  for (const Row& row : rows) {
    World world = world_of(std::vector<int>(row.cpus.size(), 5), 0);
    world.members.back().node = 4;  // a container of the same machine
    for (std::size_t rank = 0; rank < row.cpus.size(); ++rank) {
      world.members[rank].cpus = row.cpus[rank];
    }
    world.members.push_back({.host = "other", .node = 6, .machine = 6, .cpus = {0, 1}});
    const Oversubscription oversubscription = world.oversubscription(7);
    EXPECT_EQ(oversubscription.ranks, row.ranks);
    EXPECT_EQ(oversubscription.cpus, row.together);
    EXPECT_EQ(oversubscription.is_oversubscribed(), row.ranks > row.together);
    // If a rank does not report its CPUs, all ranks of the machine count. They share the CPUs that
    // the caller passes.
    world.members[row.cpus.size() - 1].cpus.clear();
    EXPECT_EQ(world.oversubscription(7).ranks, static_cast<int>(row.cpus.size()));
    EXPECT_EQ(world.oversubscription(7).cpus, 7);
  }
}

TEST(World, has_servers_behind_its_workers_and_names_them_so) {
  World world{"job", 1, 4, {}};
  for (int rank = 0; rank < 5; ++rank) world.members.push_back({"node7", 4700 + rank, rank / 2});
  world.servers = 2;
  EXPECT_EQ(world.workers(), 3);
  EXPECT_TRUE(world.is_server(3) && world.is_server(4) && !world.is_server(2));
  EXPECT_EQ(world.describe(2), "rank 2 (node7, pid 4702)");
  EXPECT_EQ(world.describe(4), "server 1 (rank 4, node7, pid 4704)");
  const Status failed = world.failed(4, "its connection was closed");
  EXPECT_EQ(failed.message(),
            "server 1 (rank 4, node7, pid 4704) stopped answering: its connection was closed");
  EXPECT_EQ(failed.detail().rank, JobRank(4));
  EXPECT_EQ(world.of_workers().size(), 3);
  EXPECT_EQ(world.of_workers().cross_size(), 2);
}

}  // namespace
}  // namespace rdmacoll
