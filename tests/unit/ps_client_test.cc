// Tests the messages that a worker's client hands to its transport before any server answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ps/client.h"

namespace rdmacoll::ps {
namespace {

// Accepts all transfers and messages, and notes their peers.
class Notes final : public Transport {
 public:
  void connect(int) override {}
  bool is_connected(int) const override { return true; }
  Reach reach(int) const override {
    return {.transport = "notes", .transfer_bytes_max = std::size_t{1} << 30};
  }
  Status post_control(int peer, std::span<const std::byte>) override {
    asked.push_back(peer);
    return {};
  }
  Status post_send(const Transfer& transfer) override {
    given.push_back(transfer.peer);
    return {};
  }
  Status post_recv(const Transfer&) override { return {}; }
  bool poll(Sink&) override { return false; }
  bool arm() override { return true; }
  int wait_handle() const override { return -1; }
  Nanoseconds next_deadline() const override { return kNever; }
  void fail(int) override {}
  bool needs_poll() const override { return false; }
  bool flushed() const override { return true; }
  Counters counters() const override { return {}; }

  std::vector<int> asked, given;
};

World world_of(int workers, int servers, int rank) {
  World world;
  world.rank = rank;
  world.servers = servers;
  world.members.resize(static_cast<std::size_t>(workers + servers));
  return world;
}

TEST(PsClient, begins_with_a_server_of_its_own) {
  constexpr int kWorkers = 4, kServers = 3;
  constexpr std::size_t kChunks = 10;  // on each server
  constexpr std::size_t kElements = kServers * kChunks * kChunkBytesLeast / sizeof(float);
  for (int worker = 0; worker < kWorkers; ++worker) {
    SCOPED_TRACE(worker);
    Notes notes;
    const World world = world_of(kWorkers, kServers, worker);
    std::unique_ptr<MemoryPool> pool;
    ASSERT_TRUE(MemoryPool::create(std::size_t{1} << 20, pool).ok());
    Client client(notes, world, *pool, {.servers = {4, 5, 6}, .chunk_bytes = kChunkBytesLeast});
    // Each server has shares of this variable.
    const VariableSpec spec{"w", Dtype::float32, {kElements}, false};
    const bool decays = false;
    CallRef declared;
    ASSERT_TRUE(
        client
            .declare({&spec, 1}, {&decays, 1}, "optimizer=sgd\ninitial_learning_rate=1\n", declared)
            .ok());
    client.turn();
    std::vector<int> order;
    for (int nth = 0; nth < kServers; ++nth) order.push_back(kWorkers + (worker + nth) % kServers);
    EXPECT_EQ(notes.asked, order);

    notes.asked.clear();
    std::vector<float> gradient(kElements);
    const Tensor tensor{0, reinterpret_cast<std::byte*>(gradient.data())};
    client.push({&tensor, 1});
    client.turn();
    EXPECT_EQ(notes.asked, order);
    ASSERT_EQ(notes.given.size(), kServers * kChunks);
    for (std::size_t i = 0; i < notes.given.size(); ++i) {
      EXPECT_EQ(notes.given[i], order[i / kChunks]);
    }
  }
}

}  // namespace
}  // namespace rdmacoll::ps
