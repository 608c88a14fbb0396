#include "verbs_sim/fixture.h"

namespace rdmacoll::verbs_sim {
namespace {

// Returns the status of one write from left to right.
int status_of_a_write(Pair& pair, uint32_t bytes = 8) {
  EXPECT_TRUE(pair.left().post_write(1, 0, bytes, pair.right(), 0));
  const std::vector<Completion> found = pair.finish(pair.left());
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? -1 : found[0].status;
}

Status connect_left(Pair& pair) {
  return pair.left().queue_pair->connect(pair.right().queue_pair->local(), pair.path);
}

TEST(VerbsSimPaths, infiniband_goes_by_lid_and_by_a_pkey_of_full_members) {
  for (const int pkey_index : {0, 1}) {
    Pair pair({}, {infiniband(0)}, {infiniband(1)});
    pair.make(0, pkey_index);
    pair.path.pkey_index = pkey_index;
    EXPECT_FALSE(pair.path.needs_grh);
    EXPECT_NE(pair.left().queue_pair->local().lid, pair.right().queue_pair->local().lid);
    pair.connect();
    EXPECT_EQ(status_of_a_write(pair), pkey_index == 1 ? 0 : 12) << "PKEY index " << pkey_index;
  }
}

TEST(VerbsSimPaths, another_subnet_needs_a_grh) {
  for (const bool needs_grh : {false, true}) {
    // The same LID in both subnets: without a GRH the packet returns to its sender.
    Pair pair({}, {infiniband(0, 0, 0)}, {infiniband(0, 0, 1)});
    EXPECT_EQ(pair.left().queue_pair->local().lid, pair.right().queue_pair->local().lid);
    pair.path.needs_grh = needs_grh;
    pair.connect();
    EXPECT_EQ(status_of_a_write(pair), needs_grh ? 0 : 12);
  }
}

TEST(VerbsSimPaths, ethernet_is_refused_without_a_grh) {
  Pair pair({});
  pair.path.needs_grh = false;
  EXPECT_FALSE(connect_left(pair).ok());
}

TEST(VerbsSimPaths, roce_v1_and_v2_do_not_understand_each_other) {
  for (const int gid_index : {2, 3}) {  // the same address as v1 and as v2
    Pair pair({}, {ethernet(0)}, {ethernet(1)});
    pair.make(3, 0);
    std::unique_ptr<rdma::QueuePair> other;
    ASSERT_TRUE(pair.right()
                    .device->create_queue_pair(pair.options[1].limits, 1, gid_index, 0, other)
                    .ok());
    pair.right().queue_pair.swap(other);
    pair.path.gid_index = 3;
    ASSERT_TRUE(connect_left(pair).ok());
    pair.path.gid_index = gid_index;
    ASSERT_TRUE(pair.right().queue_pair->connect(pair.left().queue_pair->local(), pair.path).ok());
    EXPECT_EQ(status_of_a_write(pair), gid_index == 3 ? 0 : 12);
  }
}

TEST(VerbsSimPaths, a_gid_that_nobody_has_is_not_reached) {
  Pair pair({});
  rdma::End nobody = pair.right().queue_pair->local();
  nobody.gid.raw[15] = 99;
  const Status status = pair.left().queue_pair->connect(nobody, pair.path);
  EXPECT_NE(status.message().find("Network is unreachable"), std::string::npos) << status.message();
}

TEST(VerbsSimPaths, packet_numbers_that_do_not_agree_get_lost) {
  Pair pair({});
  rdma::End right = pair.right().queue_pair->local();
  right.first_packet ^= 1;
  ASSERT_TRUE(pair.left().queue_pair->connect(right, pair.path).ok());
  ASSERT_TRUE(pair.right().queue_pair->connect(pair.left().queue_pair->local(), pair.path).ok());
  EXPECT_EQ(status_of_a_write(pair), 12);
}

TEST(VerbsSimPaths, a_path_mtu_is_one_of_the_port_and_the_same_at_both_ends) {
  Pair pair({});
  pair.path.mtu = 4096;
  EXPECT_FALSE(connect_left(pair).ok()) << "the port has 1024";
  pair.path.mtu = 1000;
  EXPECT_FALSE(connect_left(pair).ok());
  pair.path.mtu = 1024;
  EXPECT_TRUE(connect_left(pair).ok());
  pair.path.mtu = 512;
  ASSERT_TRUE(pair.right().queue_pair->connect(pair.left().queue_pair->local(), pair.path).ok());
  EXPECT_EQ(status_of_a_write(pair, 512), 0);
  EXPECT_EQ(status_of_a_write(pair, 513), 9);
}

TEST(VerbsSimPaths, what_is_sent_before_the_peer_connects_arrives_when_it_has) {
  Pair pair({});
  ASSERT_TRUE(connect_left(pair).ok());
  ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
  EXPECT_FALSE(pair.fabric.run(30));
  ASSERT_TRUE(pair.right().queue_pair->connect(pair.left().queue_pair->local(), pair.path).ok());
  EXPECT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{0});
}

TEST(VerbsSimPaths, an_old_library_does_not_say_of_which_type_a_gid_is) {
  SimFabric fabric({});
  SimVerbs& verbs = fabric.add_host({ethernet(0), infiniband(0, 1)});
  std::vector<rdma::DeviceFacts> facts;
  ASSERT_TRUE(verbs.list(facts).ok());
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(facts[0].name, "mlx5_0");
  EXPECT_EQ(facts[1].name, "mlx5_1");
  EXPECT_EQ(facts[0].ports[0].gids[3].type, rdma::GidType::roce_v2);
  verbs.hide_gid_types();
  ASSERT_TRUE(verbs.list(facts).ok());
  EXPECT_EQ(facts[0].ports[0].gids[3].type, rdma::GidType::unknown);
  std::unique_ptr<rdma::Device> device;
  ASSERT_TRUE(verbs.open({"mlx5_1", 16}, device).ok());
  EXPECT_EQ(device->facts().ports[0].gids[0].type, rdma::GidType::unknown);
}

TEST(VerbsSimPaths, what_cannot_be_opened_says_so) {
  SimFabric fabric({});
  SimVerbs& verbs = fabric.add_host({soft_roce(0)});
  std::unique_ptr<rdma::Device> device;
  EXPECT_EQ(verbs.open({"mlx5_0", 16}, device).code(), Code::invalid);
  EXPECT_FALSE(verbs.open({"rxe0", 0}, device).ok());
  EXPECT_FALSE(verbs.open({"rxe0", 32768}, device).ok());
  verbs.refuse_with(Status(Code::failed, "there is no library"));
  std::vector<rdma::DeviceFacts> facts;
  EXPECT_EQ(verbs.list(facts).message(), "there is no library");
  EXPECT_EQ(verbs.open({"rxe0", 16}, device).message(), "there is no library");
  verbs.refuse_with({});
  EXPECT_TRUE(verbs.open({"rxe0", 32767}, device).ok());
}

TEST(VerbsSimPaths, more_than_the_device_has_is_refused) {
  HostOptions small{soft_roce(0)};
  small.adapter.queue_pairs_max = 2;
  Pair pair({}, small, {soft_roce(1)});
  rdma::Device& device = *pair.left().device;
  std::unique_ptr<rdma::QueuePair> made;
  const rdma::QueuePairLimits fine = small.limits;
  rdma::QueuePairLimits limits = fine;
  limits.inline_bytes = 513;
  EXPECT_FALSE(device.create_queue_pair(limits, 1, 1, 0, made).ok());
  limits = fine;
  limits.sends = 1048577;
  EXPECT_FALSE(device.create_queue_pair(limits, 1, 1, 0, made).ok());
  limits = fine;
  limits.send_pieces = 33;
  EXPECT_FALSE(device.create_queue_pair(limits, 1, 1, 0, made).ok());
  EXPECT_FALSE(device.create_queue_pair(fine, 2, 1, 0, made).ok()) << "no port 2";
  EXPECT_FALSE(device.create_queue_pair(fine, 1, 2, 0, made).ok()) << "no GID 2";
  EXPECT_FALSE(device.create_queue_pair(fine, 1, 1, 1, made).ok()) << "no PKEY 1";
  limits = fine;
  limits.inline_bytes = 0;
  ASSERT_TRUE(device.create_queue_pair(limits, 1, 1, 0, made).ok());
  EXPECT_EQ(made->granted().inline_bytes, 16u) << "soft-RoCE grants what nobody asked for";
  std::unique_ptr<rdma::QueuePair> third;
  const Status status = device.create_queue_pair(fine, 1, 1, 0, third);
  EXPECT_NE(status.message().find("Cannot allocate memory"), std::string::npos) << status.message();
}

TEST(VerbsSimPaths, memory_beyond_the_limit_cannot_be_registered) {
  HostOptions small{soft_roce(0)};
  small.adapter.lockable_bytes = 5000;
  Pair pair({}, small, {soft_roce(1)});  // 4096 bytes are locked already
  std::vector<std::byte> more(905);
  std::unique_ptr<rdma::Registration> registration;
  rdma::Device& device = *pair.left().device;
  const Status status = device.register_memory(more.data(), 905, registration);
  EXPECT_NE(status.message().find("registering 905 bytes"), std::string::npos);
  EXPECT_NE(status.message().find("Cannot allocate memory"), std::string::npos);
  ASSERT_TRUE(device.register_memory(more.data(), 904, registration).ok());
  registration.reset();
  EXPECT_TRUE(device.register_memory(more.data(), 900, registration).ok());
  EXPECT_EQ(pair.fabric.counters().registrations, 4u);
  EXPECT_EQ(pair.fabric.counters().deregistrations, 1u);
}

}  // namespace
}  // namespace rdmacoll::verbs_sim
