// On a modelled link, virtual time must fit the formula of a pipeline: lock-step code does not.
#include <gtest/gtest.h>

#include "collectives/choose.h"
#include "collectives/cost.h"
#include "sim/scale.h"

namespace rdmacoll {
namespace {

constexpr double kInfinite = 1e12;

// A model with one link between any two ranks, and segments as for RDMA. Nothing else takes time.
LinkModel only_link(double latency_us, double bytes_per_us) {
  return {.node = {.bytes_per_us = kInfinite},
          .network = {.latency_us = latency_us, .bytes_per_us = bytes_per_us},
          .via_nic = true,
          .copy_bytes_per_us = kInfinite,
          .reduce_bytes_per_us = kInfinite};
}

ScaleResult result_of(const ScaleQuery& query) {
  ScaleResult result;
  const Status status = simulate_scale(query, result);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(result.is_simulated);
  return result;
}

ScaleQuery allreduce(int ranks, uint64_t bytes, const LinkModel& links,
                     const std::string& algorithm) {
  return {
      .ranks = ranks, .links = links, .algorithm = algorithm, .bytes = {bytes}, .ready_us = {0}};
}

class Pipeline : public testing::TestWithParam<int> {};

// Four segments of 4 MiB.
TEST_P(Pipeline, of_segments_hides_latency_behind_the_link) {
  const int ranks = GetParam();
  constexpr uint64_t kBytes = 16 << 20, kSegments = 4;
  constexpr double kLatency = 2000, kRate = 1000;  // as long as 2 MB take
  const ScaleResult result =
      result_of(allreduce(ranks, kBytes, only_link(kLatency, kRate), "ring"));
  // Each link carries 2 (p-1)/p of the bytes. Each round of one segment adds a round trip (the
  // grant, then the data) while the pipeline fills. The segment's own share of the bytes comes on
  // top.
  const double rounds = 2.0 * (ranks - 1);
  const double share = rounds / ranks * kBytes / kRate;
  const double fill = rounds * (2 * kLatency + 1.0 * kBytes / kSegments / ranks / kRate);
  EXPECT_LT(result.time_us, 1.05 * (share + fill)) << ranks << " ranks";
  EXPECT_GT(result.time_us, share);
  // Without a pipeline, each segment would pay the latency of every round.
  EXPECT_LT(result.time_us, 0.9 * (share + kSegments * rounds * 2 * kLatency));
}

INSTANTIATE_TEST_SUITE_P(ranks, Pipeline, testing::Values(2, 3, 4, 8));

// The executed schedules of the cost model are the same world without grants and control messages.
TEST(Scale, fits_the_cost_model_where_bytes_are_many) {
  const LinkModel links = kSocketLinks;
  for (int ranks : {2, 4, 8, 16}) {
    for (const char* name : {"ring", "halving_doubling"}) {
      constexpr uint64_t kBytes = 2 << 20;
      const std::vector<int> nodes = even_nodes(ranks, ranks);
      const Algorithm algorithm = *algorithm_from(name);
      const auto schedules =
          lowered_schedules(algorithm, {.ranks = ranks, .nodes = nodes}, links, true);
      const Facts facts{.ranks = ranks, .one_node = false, .bytes = kBytes};
      const uint64_t segment_bytes = segment_bytes_of(algorithm, tuning_for(kSocketLinks), facts);
      const double cost = cost_of(schedules, nodes, links, kBytes, segment_bytes).time_us;
      const double time = result_of(allreduce(ranks, kBytes, links, name)).time_us;
      EXPECT_GT(time, 0.9 * cost) << name << ", " << ranks << " ranks";
      EXPECT_LT(time, 1.3 * cost) << name << ", " << ranks << " ranks";
    }
  }
}

TEST(Scale, sums_are_compared_where_bytes_are_moved_and_times_are_the_same_without_them) {
  ScaleQuery query = allreduce(4, 1 << 20, kSocketLinks, "halving_doubling");
  const ScaleResult moved = result_of(query);
  EXPECT_TRUE(moved.is_checked);
  query.moving_bytes_max = 0;
  const ScaleResult sizes = result_of(query);
  EXPECT_FALSE(sizes.is_checked);
  EXPECT_DOUBLE_EQ(moved.time_us, sizes.time_us);
}

// The racks have 4 nodes. In the longest rounds, all halves of a vector cross the uplinks at once.
TEST(Scale, oversubscribed_uplinks_take_their_time) {
  ScaleQuery query = allreduce(8, 4 << 20, kSocketLinks, "halving_doubling");
  const double flat = result_of(query).time_us;
  query.links.rack_nodes = 4;
  query.links.uplink_bytes_per_us = 4 * kSocketLinks.network.bytes_per_us;
  const double full = result_of(query).time_us;
  query.links.uplink_bytes_per_us = kSocketLinks.network.bytes_per_us / 2;
  const double oversubscribed = result_of(query).time_us;
  EXPECT_LT(full, 1.1 * flat);
  EXPECT_GT(oversubscribed, 1.2 * flat);
}

TEST(Scale, ranks_of_a_node_share_its_port) {
  ScaleQuery query = allreduce(8, 4 << 20, kSocketLinks, "halving_doubling");
  const double apart = result_of(query).time_us;
  query.node_ranks = 4;
  query.algorithm = "two_level";
  EXPECT_GT(result_of(query).time_us, 0.5 * apart);
  EXPECT_LT(result_of(query).time_us, apart);
}

// Two operations of which the second is ready when the first has long ended: its time is its own.
TEST(Scale, a_backward_pass_hides_what_is_ready_early) {
  ScaleQuery query = allreduce(4, 1 << 20, kSocketLinks, "ring");
  const double alone = result_of(query).time_us;
  query.bytes = {1 << 20, 1 << 20};
  query.ready_us = {0, 50'000};
  const double both = result_of(query).time_us;
  EXPECT_NEAR(both - 50'000, alone, 0.2 * alone);
}

TEST(Scale, says_when_a_step_has_too_many_transfers) {
  ScaleQuery query = allreduce(64, 1 << 20, kSocketLinks, "ring");
  query.transfers_max = 1000;
  ScaleResult result;
  EXPECT_TRUE(simulate_scale(query, result).ok());
  EXPECT_FALSE(result.is_simulated);
  EXPECT_EQ(result.transfers, 64u * 126u);
  query.bytes = {3};
  EXPECT_EQ(simulate_scale(query, result).code(), Code::invalid);
  query.ranks = 1;
  EXPECT_EQ(simulate_scale(query, result).code(), Code::invalid);
}

}  // namespace
}  // namespace rdmacoll
