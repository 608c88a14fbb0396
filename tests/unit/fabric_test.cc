#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <random>

#include "base/text.h"
#include "unit/fabric_fixture.h"

namespace rdmacoll::fabric_test {
namespace {

// Control and transfers between all pairs, in both directions at once.
void exchange(Cluster& cluster, std::size_t bytes, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << bytes << " B");
  const int size = cluster.size();
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::byte>> from(size * size), to(size * size);
  std::vector<Piece> sources(size * size), targets(size * size);
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      const int i = a * size + b;
      from[i].resize(bytes);
      to[i].resize(bytes);
      for (std::byte& byte : from[i]) byte = static_cast<std::byte>(random());
      sources[i] = {from[i].data(), bytes};
      targets[i] = {to[i].data(), bytes};
    }
  }
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      if (a == b) continue;
      const auto i = static_cast<uint64_t>(a * size + b);
      const std::string text = cat("from ", a, " to ", b);
      ASSERT_TRUE(cluster.fabrics[a]->post_control(b, bytes_of(text)).ok());
      ASSERT_TRUE(cluster.fabrics[a]->post_send({b, 1, 0, {&sources[i], 1}, i}).ok());
      ASSERT_TRUE(cluster.fabrics[b]->post_recv({a, 1, 0, {&targets[i], 1}, i}).ok());
    }
  }
  const auto peers = static_cast<std::size_t>(size - 1);
  ASSERT_TRUE(cluster.until([&] {
    return std::all_of(cluster.events.begin(), cluster.events.end(), [&](const Events& one) {
      return one.sent_cookies.size() == peers && one.received_cookies.size() == peers &&
             one.messages.size() == peers;
    });
  }));
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      if (a == b) continue;
      EXPECT_TRUE(from[a * size + b] == to[a * size + b]) << a << " to " << b;
      EXPECT_THAT(cluster.events[b].messages,
                  testing::Contains(std::pair(a, cat("from ", a, " to ", b))));
    }
  }
  ASSERT_TRUE(cluster.until([&] {
    return std::all_of(cluster.fabrics.begin(), cluster.fabrics.end(),
                       [](const auto& fabric) { return fabric->flushed(); });
  }));
}

TEST(Fabric, two_ranks_of_a_node_meet_over_shared_memory) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.begin().ok());
  EXPECT_EQ(cluster.fabrics[0]->transport_name(), "shm");
  EXPECT_EQ(cluster.fabrics[0]->summary(), "none");
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  EXPECT_EQ(cluster.fabrics[0]->reach(1).transport, "shm");
  EXPECT_EQ(cluster.fabrics[1]->summary(), "shm (1 peer)");
  exchange(cluster, 300'000, std::random_device{}());
}

TEST(Fabric, two_ranks_meet_over_tcp_where_only_that_is_allowed) {
  Cluster cluster(2, only({"tcp"}));
  ASSERT_TRUE(cluster.begin().ok());
  EXPECT_EQ(cluster.fabrics[0]->transport_name(), "tcp");
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  EXPECT_EQ(cluster.fabrics[0]->reach(1).transport, "tcp");
  EXPECT_EQ(cluster.fabrics[0]->counters().handshakes, 1u);
  EXPECT_EQ(cluster.fabrics[0]->counters().connections, 1u);
  exchange(cluster, 3'000'000, std::random_device{}());
}

TEST(Fabric, five_ranks_on_two_nodes_use_both) {
  Cluster cluster(5);
  ASSERT_TRUE(cluster.begin({0, 0, 2, 2, 2}).ok());
  EXPECT_EQ(cluster.fabrics[3]->transport_name(), "shm+tcp");
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  EXPECT_EQ(cluster.fabrics[3]->summary(), "shm (2 peers), tcp (2 peers)");
  EXPECT_EQ(cluster.fabrics[0]->reach(1).transport, "shm");
  EXPECT_EQ(cluster.fabrics[0]->reach(2).transport, "tcp");
  exchange(cluster, 100'000, std::random_device{}());
}

TEST(Fabric, a_world_of_one_needs_nobody) {
  Cluster cluster(1);
  ASSERT_TRUE(cluster.begin().ok());
  Fabric& fabric = *cluster.fabrics[0];
  EXPECT_EQ(fabric.transport_name(), "none");
  EXPECT_FALSE(fabric.poll(cluster.events[0]));
  EXPECT_TRUE(fabric.arm());
  EXPECT_EQ(fabric.next_deadline(), kNever);
  EXPECT_TRUE(fabric.flushed());
}

TEST(Fabric, ranks_of_one_node_find_the_lowest_as_leader) {
  Cluster cluster(4);
  int leader = -1;
  for (auto& fabric : cluster.fabrics) {
    ASSERT_TRUE(fabric->probe_node(cluster.cards, leader).ok());
    EXPECT_EQ(leader, 0);
  }
}

TEST(Fabric, a_socket_that_does_not_answer_is_no_leader) {
  Cluster cluster(3);
  cluster.fabrics[0].reset();  // its card names the same boot and namespace, but the rank is gone
  int leader = -1;
  ASSERT_TRUE(cluster.fabrics[2]->probe_node(cluster.cards, leader).ok());
  EXPECT_EQ(leader, 1);
  ASSERT_TRUE(cluster.fabrics[1]->probe_node(cluster.cards, leader).ok());
  EXPECT_EQ(leader, 1);
}

TEST(Fabric, listens_on_the_chosen_interface_only) {
  Cluster cluster(2, [](FabricOptions& options) {
    options.config.interface = "127.0.0.0/8";
    options.config.transports = {"tcp"};
  });
  Card card;
  ASSERT_TRUE(parse_card(cluster.cards[0], 0, card).ok());
  ASSERT_EQ(card.tcp.size(), 1u);
  EXPECT_EQ(card.tcp[0].host(), "127.0.0.1");
  ASSERT_TRUE(cluster.begin().ok());
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
}

TEST(Fabric, works_over_ipv6) {
  const auto addresses = interface_addresses();
  const bool has_ipv6 = std::any_of(addresses.begin(), addresses.end(), [](const auto& one) {
    return one.address.family() == AF_INET6 && one.address.is_loopback();
  });
  const std::string loopback = has_ipv6 ? "::1" : "127.0.0.1";  // a kernel without IPv6
  Cluster cluster(2, [&](FabricOptions& options) {
    options.config.interface = loopback;
    options.config.transports = {"tcp"};
  });
  Card card;
  ASSERT_TRUE(parse_card(cluster.cards[0], 0, card).ok());
  EXPECT_EQ(card.tcp[0].host(), loopback);
  ASSERT_TRUE(cluster.begin().ok());
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  exchange(cluster, 1000, 1);
}

TEST(Fabric, calls_before_the_connection_are_busy) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.begin().ok());
  EXPECT_TRUE(cluster.fabrics[0]->post_control(1, {}).is_busy());
  cluster.fabrics[0]->connect(1);
  EXPECT_TRUE(cluster.fabrics[0]->post_send({.peer = 1}).is_busy());
  EXPECT_TRUE(cluster.fabrics[1]->post_recv({.peer = 0}).is_busy());
  EXPECT_FALSE(cluster.fabrics[0]->is_connected(1));
}

// The called rank need not have requested the connection.
TEST(Fabric, a_caller_is_let_in_before_it_is_expected) {
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster(2, only({transport}));
    ASSERT_TRUE(cluster.begin().ok());
    cluster.fabrics[0]->connect(1);
    ASSERT_TRUE(cluster.all_meet()) << transport;
    cluster.fabrics[1]->connect(0);
    for (int i = 0; i < 1000; ++i) cluster.step();
    EXPECT_EQ(cluster.events[0].peers.size(), 1u);
    EXPECT_EQ(cluster.events[1].peers.size(), 1u);
    EXPECT_TRUE(cluster.events[1].failures.empty());
  }
}

// The engine sleeps on wait_handle(): each thing that can happen must wake it.
TEST(Fabric, a_sleeper_is_woken_by_callers_and_by_messages) {
  const auto is_ready = [](Fabric& fabric) {
    pollfd handle{.fd = fabric.wait_handle(), .events = POLLIN};
    return ::poll(&handle, 1, 5000) == 1;
  };
  for (const char* transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    Cluster cluster(2, only({transport}));
    ASSERT_TRUE(cluster.begin().ok());
    Fabric& sleeper = *cluster.fabrics[1];
    while (!sleeper.arm()) sleeper.poll(cluster.events[1]);
    cluster.fabrics[0]->connect(1);
    cluster.fabrics[0]->poll(cluster.events[0]);
    EXPECT_TRUE(is_ready(sleeper));
    ASSERT_TRUE(cluster.all_meet());
    while (cluster.step()) {
    }
    while (!sleeper.arm()) sleeper.poll(cluster.events[1]);
    ASSERT_TRUE(cluster.fabrics[0]->post_control(1, bytes_of("wake")).ok());
    while (cluster.fabrics[0]->poll(cluster.events[0])) {
    }
    EXPECT_TRUE(is_ready(sleeper));
    ASSERT_TRUE(cluster.until([&] { return !cluster.events[1].messages.empty(); }));
  }
}

TEST(Fabric, leaves_no_descriptor_behind) {
  const int before = open_descriptors();
  for (int turn = 0; turn < 3; ++turn) {
    Cluster cluster(3);
    ASSERT_TRUE(cluster.begin({0, 0, 2}).ok());
    cluster.connect_all();
    ASSERT_TRUE(cluster.all_meet());
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace rdmacoll::fabric_test
