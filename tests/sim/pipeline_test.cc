// On a modelled link, virtual time must fit the formula of a pipeline: lock-step code does not.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "compute/inline.h"
#include "engine/engine.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"

namespace rdmacoll {
namespace {

struct Node {
  std::unique_ptr<MemoryPool> pool;
  InlineCompute compute;
  std::unique_ptr<Engine> engine;
};

// Virtual time of one allreduce of `bytes`, after a first one that makes the connections.
Nanoseconds time_of_allreduce(int ranks, uint64_t bytes, uint64_t segment_bytes,
                              const std::string& algorithm, const SimPolicy& policy) {
  SimNetwork network(ranks, policy);
  std::vector<Node> nodes(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    World world{"pipeline", 1, rank, {}};
    for (int r = 0; r < ranks; ++r) world.members.push_back({"host", r, r});
    Config config;
    config.allreduce_algorithms = {{algorithm}};
    config.segment_bytes = segment_bytes;
    EXPECT_TRUE(MemoryPool::create(256 << 20, nodes[rank].pool).ok());
    nodes[rank].engine = std::make_unique<Engine>(
        EngineParts{world, config, network.transport(rank), nodes[rank].compute, *nodes[rank].pool,
                    network.clock(), Log(LogLevel::error, rank)});
  }
  Nanoseconds took = 0;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::vector<float>> data(ranks, std::vector<float>(bytes / 4, 1.0f));
    std::vector<OperationRef> operations;
    const Nanoseconds begin = network.clock().now();
    for (int rank = 0; rank < ranks; ++rank) {
      Request request;
      auto* memory = reinterpret_cast<std::byte*>(data[rank].data());
      request.tensors = {{memory, memory, {static_cast<int64_t>(bytes / 4)}, ""}};
      operations.push_back(std::make_shared<Operation>(std::move(request)));
      EXPECT_TRUE(nodes[rank].engine->submit(operations.back()).ok());
    }
    const auto all_done = [&] {
      for (const auto& operation : operations) {
        if (!operation->done()) return false;
      }
      return true;
    };
    while (!all_done() && network.clock().now() - begin < 100 * kSecond) {
      bool moved = false;
      for (Node& node : nodes) moved |= node.engine->progress();
      if (!moved && !network.step())
        network.clock().advance_to(network.clock().now() + kMillisecond);
    }
    EXPECT_TRUE(all_done());
    for (const auto& values : data) EXPECT_EQ(values.back(), static_cast<float>(ranks));
    took = network.clock().now() - begin;
  }
  return took;
}

SimPolicy link(Nanoseconds latency, double bytes_per_us) {
  SimPolicy policy;
  policy.views = false;
  policy.latency = latency;
  policy.bytes_per_us = bytes_per_us;
  return policy;
}

class Pipeline : public testing::TestWithParam<int> {};

TEST_P(Pipeline, of_segments_hides_latency_behind_the_link) {
  const int ranks = GetParam();
  constexpr uint64_t kBytes = 16 << 20;
  const Nanoseconds latency = 100 * kMicrosecond;
  const double bandwidth = 1000;  // bytes per microsecond
  const Nanoseconds took =
      time_of_allreduce(ranks, kBytes, 1 << 20, "ring", link(latency, bandwidth));
  // Each link carries 2 (p-1)/p of the bytes; filling the pipeline costs a round trip per round of
  // one segment, and a segment's own share per round.
  const double share = 2.0 * (ranks - 1) / ranks * kBytes / bandwidth * kMicrosecond;
  const double rounds = 2.0 * (ranks - 1);
  const double fill = rounds * (2.0 * latency + (1 << 20) / ranks / bandwidth * kMicrosecond);
  EXPECT_LT(took, 1.1 * (share + fill) + 10 * latency) << "ranks " << ranks;
  EXPECT_GT(took, share);
  // One segment after the other would pay the latency of every round for each of the 16 segments.
  const double lock_step = share + 16 * rounds * latency;
  EXPECT_LT(took, 0.9 * lock_step);
}

INSTANTIATE_TEST_SUITE_P(ranks, Pipeline, testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace rdmacoll
