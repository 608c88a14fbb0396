// The errors that ranks get when an RDMA path between them fails.
#include <gmock/gmock.h>

#include "conformance/rdma_puppet.h"

namespace rdmacoll::conformance {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using verbs_sim::ethernet;
using verbs_sim::infiniband;
using verbs_sim::soft_roce;

class RdmaFaults : public testing::Test {
 protected:
  VerbsFleet& make(const std::vector<VerbsRank>& ranks, verbs_sim::FabricPolicy policy = {},
                   bool connects = true) {
    policy.seed = 41;
    fleet_ = std::make_unique<VerbsFleet>(policy, ranks);
    fleet_->meet_all();
    if (connects) {
      EXPECT_TRUE(fleet_->poll_until([&] { return fleet_->all_connected(); }));
    }
    return *fleet_;
  }
  VerbsFleet& make_two() {
    return make({{.adapters = {ethernet(0)}}, {.adapters = {ethernet(1)}}});
  }

  // Starts a transfer from `from` to `to`, which need not complete.
  uint64_t start(int from, int to, std::size_t bytes, bool is_of_pool = true) {
    std::mt19937_64 random(++cookie_);
    for (const bool is_send : {true, false}) {
      MemoryPool* pool = is_of_pool ? &fleet_->pool(is_send ? from : to) : nullptr;
      auto& buffer = buffers_.emplace_back(std::make_unique<Buffer>(pool, bytes, 1, random));
      buffer->paint(is_send ? cookie_ : 0);
      const Transfer transfer{.peer = is_send ? to : from,
                              .sequence = cookie_,
                              .pieces = buffer->pieces(),
                              .cookie = cookie_};
      const Status status =
          is_send ? fleet_->at(from).post_send(transfer) : fleet_->at(to).post_recv(transfer);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return cookie_;
  }
  void expect_arrives(int to, uint64_t cookie) {
    EXPECT_TRUE(
        fleet_->poll_until([&] { return fleet_->sink(to).received_cookies.contains(cookie); }));
    EXPECT_TRUE(buffers_.back()->is_painted(cookie));
  }

  std::unique_ptr<VerbsFleet> fleet_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  uint64_t cookie_ = 0;
};

TEST_F(RdmaFaults, path_that_is_dead_from_the_beginning_is_named_with_its_cure) {
  VerbsFleet fleet({.seed = 42}, {{.adapters = {ethernet(0)}}, {.adapters = {ethernet(1)}}});
  fleet.fabric.cut(0, 1);
  fleet.meet_all();
  const auto failed = [&](int rank) { return !fleet.sink(rank).failures.empty(); };
  EXPECT_TRUE(fleet.poll_until([&] { return failed(0) && failed(1); }));
  // The second rank may hear of the end of the first one before its own retries are over.
  const std::string all = fleet.failure(0, 1) + fleet.failure(1, 0);
  EXPECT_THAT(all, AllOf(HasSubstr("retry counter exceeded (12)"), HasSubstr("mlx5_0 port 1"),
                         HasSubstr("to GID ::ffff:10.9.0."), HasSubstr("No path between the two"),
                         HasSubstr("TF_RDMA_DEV_NAME")));
  EXPECT_TRUE(fleet.sink(0).peers.empty());
}

TEST_F(RdmaFaults, second_rail_that_is_dead_from_the_beginning_connects_nobody) {
  VerbsFleet fleet({.seed = 43}, {{.adapters = {ethernet(0, 0), ethernet(0, 1)}},
                                  {.adapters = {ethernet(1, 0), ethernet(1, 1)}}});
  fleet.fabric.lower_port(1, "mlx5_1", 1);
  fleet.meet_all();
  const std::string all = fleet.failure(0, 1) + fleet.failure(1, 0);
  EXPECT_THAT(all, AllOf(HasSubstr("mlx5_1 port 1"), HasSubstr("No path between the two")));
  EXPECT_TRUE(fleet.sink(0).peers.empty());
  EXPECT_TRUE(fleet.sink(1).peers.empty());
}

TEST_F(RdmaFaults, path_that_dies_is_named) {
  VerbsFleet& fleet = make_two();
  fleet.fabric.cut(0, 1);
  start(0, 1, 500'000);
  // The rank that has nothing to send also reports the cause.
  for (const std::string& cause : {fleet.failure(0, 1), fleet.failure(1, 0)}) {
    EXPECT_THAT(cause, AllOf(HasSubstr("retry counter exceeded (12)"), HasSubstr("mlx5_0 port 1"),
                             HasSubstr("GID ::ffff:10.9.0.")));
    EXPECT_THAT(cause, testing::Not(HasSubstr("No path between the two"))) << "there was one";
  }
}

TEST_F(RdmaFaults, lid_names_an_infiniband_path) {
  VerbsFleet& fleet = make({{.adapters = {infiniband(0)}}, {.adapters = {infiniband(1)}}});
  fleet.fabric.cut(0, 1);
  start(0, 1, 500'000);
  EXPECT_THAT(fleet.failure(0, 1) + fleet.failure(1, 0), HasSubstr("to LID "));
}

TEST_F(RdmaFaults, path_that_comes_back_within_the_retries_harms_nobody) {
  VerbsFleet& fleet =
      make({{.adapters = {ethernet(0)}}, {.adapters = {ethernet(1)}}}, {.retry_steps = 1'000'000});
  fleet.fabric.lower_port(0, "mlx5_0", 1);
  const uint64_t cookie = start(0, 1, 700'000);
  for (int i = 0; i < 300; ++i) fleet.poll_all();
  EXPECT_FALSE(fleet.sink(1).received_cookies.contains(cookie));
  fleet.fabric.raise_port(0, "mlx5_0", 1);
  expect_arrives(1, cookie);
  EXPECT_TRUE(fleet.sink(0).failures.empty() && fleet.sink(1).failures.empty());
}

TEST_F(RdmaFaults, device_that_fails_ends_all_its_peers_and_no_others) {
  VerbsFleet& fleet =
      make({{.adapters = {ethernet(0)}}, {.adapters = {ethernet(1)}}, {.adapters = {ethernet(2)}}});
  start(0, 1, 900'000);
  start(2, 0, 900'000);
  fleet.fabric.break_device(0, "mlx5_0");
  EXPECT_THAT(fleet.failure(0, 1), HasSubstr("mlx5_0"));
  EXPECT_THAT(fleet.failure(0, 2), HasSubstr("mlx5_0"));
  for (const int peer : {1, 2}) {
    EXPECT_THAT(fleet.failure(peer, 0), AnyOf(HasSubstr("gave up and said: mlx5_0 has failed"),
                                              HasSubstr("retry counter exceeded (12)")));
  }
  expect_arrives(2, start(1, 2, 900'000));
}

// A soft-RoCE device disappears with its network interface. Ranks then see only flushed requests.
TEST_F(RdmaFaults, device_that_is_taken_away_is_named_at_both_ends) {
  VerbsFleet& fleet = make({{.adapters = {ethernet(0)}}, {.adapters = {ethernet(1)}}});
  start(0, 1, 900'000);
  fleet.fabric.take_away(1, "mlx5_0");
  const std::string cause = "the RDMA device of rank 1, mlx5_0 port 1";
  EXPECT_THAT(fleet.failure(1, 0),
              AllOf(HasSubstr(cause), HasSubstr("does not answer any more"), HasSubstr("flushed")));
  EXPECT_THAT(fleet.failure(0, 1), HasSubstr("gave up and said: " + cause));
}

TEST_F(RdmaFaults, queue_that_is_full_now_and_then_delays_only) {
  VerbsFleet& fleet = make({{.adapters = {ethernet(0)}, .options = {.chunk_bytes = 4'000}},
                            {.adapters = {ethernet(1)}, .options = {.chunk_bytes = 4'000}}},
                           {.full = 0.6});
  for (int turn = 0; turn < 4; ++turn) {
    const uint64_t there = start(0, 1, 900'000);
    expect_arrives(1, there);
    expect_arrives(0, start(1, 0, 900'000, false));
  }
  EXPECT_GT(fleet.fabric.counters().fulls, 100u);
}

// A sender waits for a receiver that has posted fewer receives than promised, as long as the path's
// settings say.
TEST_F(RdmaFaults, receiver_that_is_not_ready_is_waited_for) {
  VerbsFleet fleet({.seed = 45, .rnr_steps = 1'000'000}, {{.adapters = {ethernet(0)}}}, 2);
  RdmaPuppet puppet(fleet, {ethernet(1)});
  puppet.greeting.receives = 8;
  puppet.posted = 3;
  puppet.connect();
  const std::vector<std::byte> word(8'000);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(fleet.at(0).post_control(1, word).ok());
  puppet.settle(100);
  EXPECT_EQ(puppet.messages.size(), 3u);
  EXPECT_GT(fleet.fabric.counters().rnrs, 0u);
  fleet.fabric.policy().rnr_steps = 1;
  for (uint64_t id = puppet.posted; id < puppet.greeting.receives; ++id) puppet.post_receive(0, id);
  EXPECT_TRUE(puppet.poll_until([&] { return puppet.messages.size() == 7; }));
  EXPECT_TRUE(fleet.sink(0).failures.empty());
}

TEST_F(RdmaFaults, receiver_that_is_never_ready_is_named) {
  VerbsFleet fleet({.seed = 46}, {{.adapters = {ethernet(0)}}}, 2);
  RdmaPuppet puppet(fleet, {ethernet(1)});
  puppet.posted = 1;
  puppet.connect();
  const std::vector<std::byte> word(8'000);
  ASSERT_TRUE(fleet.at(0).post_control(1, word).ok());
  EXPECT_THAT(fleet.failure(0, 1), AllOf(HasSubstr("(13)"), HasSubstr("mlx5_0 port 1")));
}

// ---- memory ----

TEST_F(RdmaFaults, exhausted_pool_is_named_with_its_cure) {
  VerbsFleet fleet({.seed = 44}, {{.adapters = {ethernet(0)}}, {.adapters = {ethernet(1)}}});
  std::vector<std::byte*> taken;
  while (std::byte* some = fleet.pool(0).allocate(256 << 10)) taken.push_back(some);
  fleet.meet_all();
  EXPECT_THAT(fleet.failure(0, 1),
              AllOf(HasSubstr("the buffer pool of 64"), HasSubstr("left for its messages"),
                    HasSubstr("TF_RDMA_BUF_SIZE")));
  EXPECT_NE(fleet.failure(1, 0), "");
  for (std::byte* some : taken) fleet.pool(0).free(some);
}

TEST_F(RdmaFaults, pool_without_room_for_staging_is_named_with_its_cure) {
  VerbsFleet& fleet = make_two();
  std::vector<std::byte*> taken;
  while (std::byte* some = fleet.pool(0).allocate(64 << 10)) taken.push_back(some);
  start(0, 1, 300'000, false);
  EXPECT_THAT(fleet.failure(0, 1),
              AllOf(HasSubstr("left to copy through"), HasSubstr("TF_RDMA_BUF_SIZE")));
  for (std::byte* some : taken) fleet.pool(0).free(some);
}

// The end of the peer's socket overtakes the peer's acknowledgements.
TEST_F(RdmaFaults, what_a_peer_has_received_before_it_left_is_sent) {
  int overtaken = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    buffers_.clear();
    fleet_ = std::make_unique<VerbsFleet>(
        verbs_sim::FabricPolicy{
            .seed = seed, .step_on_poll = 0, .step_at_arm = 0, .acknowledgement_lost = 0},
        std::vector<VerbsRank>{{.adapters = {ethernet(0)}}, {.adapters = {ethernet(1)}}});
    VerbsFleet& fleet = *fleet_;
    fleet.meet_all();
    ASSERT_TRUE(fleet.poll_until([&] { return fleet.all_connected(); }));
    const uint64_t cookie = start(0, 1, 50'000);
    while (!fleet.sink(1).received_cookies.contains(cookie)) {
      fleet.fabric.step();
      fleet.at(1).poll(fleet.sink(1));
      fleet.at(0).poll(fleet.sink(0));
    }
    overtaken += fleet.sink(0).sent_cookies.contains(cookie) ? 0 : 1;
    fleet.transports[1].reset();
    fleet.at(0).arm();  // the next poll looks at the socket
    fleet.at(0).poll(fleet.sink(0));
    const auto& failures = fleet.sink(0).failures;
    while (failures.empty()) {
      fleet.fabric.step();
      fleet.at(0).poll(fleet.sink(0));
    }
    EXPECT_TRUE(fleet.sink(0).sent_cookies.contains(cookie));
  }
  EXPECT_GT(overtaken, 0);
}

// Both peers hear the reason, so no rank waits for buffers that never come.
TEST_F(RdmaFaults, memory_that_may_not_be_locked_fails_every_peer_that_needs_it) {
  verbs_sim::AdapterModel limited = ethernet(0);
  limited.lockable_bytes = std::size_t{3} << 20;  // messages fit, staging buffers do not
  VerbsFleet& fleet =
      make({{.adapters = {limited}}, {.adapters = {ethernet(1)}}, {.adapters = {ethernet(2)}}});
  start(0, 1, 300'000, false);
  EXPECT_THAT(fleet.failure(0, 1),
              AllOf(HasSubstr("registering"), HasSubstr("mlx5_0"), HasSubstr("annot allocate")));
  start(0, 2, 300'000, false);
  EXPECT_THAT(fleet.failure(0, 2), HasSubstr("registering"));
}

TEST_F(RdmaFaults, memory_of_messages_that_may_not_be_locked_is_named) {
  verbs_sim::AdapterModel limited = ethernet(0);
  limited.lockable_bytes = 64 << 10;
  make({{.adapters = {limited}}, {.adapters = {ethernet(1)}}}, {}, false);
  EXPECT_THAT(fleet_->failure(0, 1), HasSubstr("registering"));
  EXPECT_NE(fleet_->failure(1, 0), "");
}

}  // namespace
}  // namespace rdmacoll::conformance
