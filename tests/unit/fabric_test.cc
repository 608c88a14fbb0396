#include "bootstrap/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "base/text.h"

namespace rdmacoll {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Events final : Sink {
  std::multiset<int> peers;
  std::multiset<uint64_t> sent_cookies, received_cookies;
  std::vector<std::pair<int, std::string>> messages;
  std::map<int, std::vector<std::string>> failures;

  void connected(int peer) override { peers.insert(peer); }
  void sent(uint64_t cookie) override { sent_cookies.insert(cookie); }
  void received(uint64_t cookie) override { received_cookies.insert(cookie); }
  void viewed(uint64_t, const View&) override {}
  void control(int peer, std::span<const std::byte> message) override {
    messages.emplace_back(
        peer, std::string(reinterpret_cast<const char*>(message.data()), message.size()));
  }
  void peer_failed(int peer, const std::string& cause) override { failures[peer].push_back(cause); }
};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> secret_of(std::string_view text) {
  return {bytes_of(text).begin(), bytes_of(text).end()};
}

using Edit = std::function<void(FabricOptions&)>;

// All ranks of a small world in this process, stepped in turn.
struct Cluster {
  SteadyClock clock;
  std::vector<std::unique_ptr<MemoryPool>> pools;
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::vector<Events> events;
  std::vector<std::string> cards;

  explicit Cluster(int size, const Edit& edit = {}) : events(size) {
    for (int rank = 0; rank < size; ++rank) {
      FabricOptions options{.rank = rank,
                            .size = size,
                            .job = "fabric test",
                            .secret = secret_of("sixteen bytes of secret"),
                            .epoch = 3,
                            .config = {.start_timeout_s = 30}};
      if (edit) edit(options);
      pools.emplace_back();
      EXPECT_TRUE(MemoryPool::create(64 << 20, pools.back()).ok());
      fabrics.emplace_back();
      const Status status = Fabric::open(std::move(options), *pools.back(), clock, fabrics.back());
      EXPECT_TRUE(status.ok()) << status.message();
      cards.push_back(fabrics.back()->card());
    }
  }

  int size() const { return static_cast<int>(fabrics.size()); }

  // `leaders` empty: as probed.
  Status begin(std::vector<int> leaders = {}) {
    std::vector<int> probed(fabrics.size());
    for (int rank = 0; rank < size(); ++rank) {
      RC_RETURN_IF_ERROR(fabrics[rank]->probe_node(cards, probed[rank]));
    }
    if (leaders.empty()) leaders = probed;
    for (auto& fabric : fabrics) {
      World world;
      RC_RETURN_IF_ERROR(fabric->make_world(leaders, world));
      RC_RETURN_IF_ERROR(fabric->begin(world));
    }
    return {};
  }

  void connect_all() {
    for (int rank = 0; rank < size(); ++rank) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank) fabrics[rank]->connect(peer);
      }
    }
  }

  bool step() {
    bool moved = false;
    for (int rank = 0; rank < size(); ++rank) {
      if (fabrics[rank]) moved |= fabrics[rank]->poll(events[rank]);
    }
    return moved;
  }

  // Fails, rather than hangs, when `condition` stays false for far longer than it should.
  [[nodiscard]] bool until(const std::function<bool()>& condition, double seconds = 60) {
    const Nanoseconds end = clock.now() + static_cast<Nanoseconds>(seconds * kSecond);
    while (!condition()) {
      if (clock.now() > end) return false;
      step();
    }
    return true;
  }

  [[nodiscard]] bool all_meet() {
    return until([&] {
      return std::all_of(events.begin(), events.end(), [&](const Events& one) {
        return static_cast<int>(one.peers.size()) == size() - 1;
      });
    });
  }
};

Edit only(std::vector<std::string> transports) {
  return [=](FabricOptions& options) { options.config.transports = transports; };
}

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
  cluster.fabrics[0].reset();  // same boot and namespace on its card, but nobody is there
  int leader = -1;
  ASSERT_TRUE(cluster.fabrics[2]->probe_node(cluster.cards, leader).ok());
  EXPECT_EQ(leader, 1);
  ASSERT_TRUE(cluster.fabrics[1]->probe_node(cluster.cards, leader).ok());
  EXPECT_EQ(leader, 1);
}

TEST(Fabric, leaders_that_contradict_each_other_are_refused) {
  Cluster cluster(3);
  int leader = -1;
  ASSERT_TRUE(cluster.fabrics[0]->probe_node(cluster.cards, leader).ok());
  World world;
  for (const std::vector<int>& leaders :
       {std::vector{0, 0, 1}, {0, 2, 2}, {-1, 0, 0}, {0, 0, 7}, {0, 0}}) {
    EXPECT_FALSE(cluster.fabrics[0]->make_world(leaders, world).ok()) << join(leaders, " ");
  }
  EXPECT_TRUE(cluster.fabrics[0]->make_world({0, 1, 0}, world).ok());
  EXPECT_TRUE(world.same_node(0, 2));
  EXPECT_FALSE(world.same_node(0, 1));
  EXPECT_EQ(world.members[2].pid, ::getpid());
}

TEST(Fabric, different_settings_are_refused_by_every_rank) {
  Cluster cluster(3, [](FabricOptions& options) {
    options.settings["RDMACOLL_ORDER"] = options.rank == 1 ? "canonical" : "run";
  });
  int leader = -1;
  for (auto& fabric : cluster.fabrics) {
    const Status status = fabric->probe_node(cluster.cards, leader);
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_THAT(status.message(), HasSubstr("RDMACOLL_ORDER: ranks 0, 2: run; rank 1: canonical"));
  }
}

TEST(Fabric, a_card_that_is_no_card_is_refused) {
  Cluster cluster(2);
  int leader = -1;
  cluster.cards[1] = "{\"wire\":1}";
  EXPECT_EQ(cluster.fabrics[0]->probe_node(cluster.cards, leader).code(), Code::invalid);
  cluster.cards.pop_back();
  EXPECT_EQ(cluster.fabrics[0]->probe_node(cluster.cards, leader).code(), Code::invalid);
}

TEST(Fabric, ranks_that_nothing_allowed_connects_are_told_so) {
  Cluster cluster(3, only({"shm"}));
  const Status status = cluster.begin({0, 0, 2});
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("RDMACOLL_TRANSPORT=shm"), HasSubstr("between rank 0"),
                    HasSubstr("and rank 2"), HasSubstr("different nodes"), HasSubstr("Add tcp")));
}

TEST(Fabric, an_interface_that_does_not_exist_is_refused) {
  SteadyClock clock;
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(16 << 20, pool).ok());
  std::unique_ptr<Fabric> fabric;
  FabricOptions options{.size = 2};
  options.config.interface = "nonsense7";
  const Status status = Fabric::open(std::move(options), *pool, clock, fabric);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), HasSubstr("RDMACOLL_INTERFACE=nonsense7"));
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

// The one who is called need not have asked for the connection.
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

TEST(Fabric, a_wrong_secret_is_refused_by_both_sides) {
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster(2, [&](FabricOptions& options) {
      options.config.transports = {transport};
      options.config.start_timeout_s = 0.5;
      if (options.rank == 1) options.secret = secret_of("another secret altogether");
    });
    ASSERT_TRUE(cluster.begin().ok());
    cluster.connect_all();
    ASSERT_TRUE(cluster.until([&] {
      return !cluster.events[0].failures.empty() && !cluster.events[1].failures.empty();
    }));
    EXPECT_TRUE(cluster.events[0].peers.empty());
    EXPECT_TRUE(cluster.events[1].peers.empty());
    ASSERT_EQ(cluster.events[0].failures[1].size(), 1u);
    EXPECT_THAT(cluster.events[0].failures[1][0], HasSubstr("does not know the secret"));
    ASSERT_EQ(cluster.events[1].failures[0].size(), 1u);
    EXPECT_THAT(cluster.events[1].failures[0][0],
                AllOf(HasSubstr("did not connect"), HasSubstr("another secret")));
  }
}

TEST(Fabric, another_epoch_or_job_is_refused) {
  for (const bool epoch : {true, false}) {
    Cluster cluster(2, [&](FabricOptions& options) {
      options.config.start_timeout_s = 0.3;
      if (options.rank == 1) epoch ? void(options.epoch = 4) : void(options.job = "other");
    });
    ASSERT_TRUE(cluster.begin().ok());
    cluster.connect_all();
    ASSERT_TRUE(cluster.until([&] {
      return !cluster.events[0].failures.empty() && !cluster.events[1].failures.empty();
    }));
    const std::string expected = epoch ? "epoch" : "another job";
    EXPECT_THAT(cluster.events[0].failures[1][0],
                AllOf(HasSubstr("no connection after 0.3 s"), HasSubstr(expected)));
    EXPECT_THAT(cluster.events[1].failures[0][0], HasSubstr(expected));
  }
}

TEST(Fabric, a_peer_that_never_listens_is_named_with_address_and_error) {
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster(2, [&](FabricOptions& options) {
      options.config.transports = {transport};
      options.config.start_timeout_s = 0.3;
    });
    ASSERT_TRUE(cluster.begin().ok());
    cluster.fabrics[1].reset();
    cluster.fabrics[0]->connect(1);
    ASSERT_TRUE(cluster.until([&] { return !cluster.events[0].failures.empty(); }));
    EXPECT_THAT(
        cluster.events[0].failures[1][0],
        AllOf(HasSubstr("no connection after 0.3 s"), HasSubstr("connection refused"),
              HasSubstr(transport == std::string("tcp") ? "127.0.0.1:" : "unix:rdmacoll-")));
    EXPECT_TRUE(cluster.fabrics[0]->post_control(1, bytes_of("x")).ok());
  }
}

TEST(Fabric, a_peer_that_never_calls_is_reported) {
  Cluster cluster(2, [](FabricOptions& options) { options.config.start_timeout_s = 0.2; });
  ASSERT_TRUE(cluster.begin().ok());
  cluster.fabrics[1]->connect(0);
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[1].failures.empty(); }));
  EXPECT_THAT(cluster.events[1].failures[0][0],
              HasSubstr("did not connect to this rank within 0.2"));
}

TEST(Fabric, the_end_of_a_peer_is_reported_once_by_every_other) {
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster(3, only({transport}));
    ASSERT_TRUE(cluster.begin().ok());
    cluster.connect_all();
    ASSERT_TRUE(cluster.all_meet());
    cluster.fabrics[1].reset();
    ASSERT_TRUE(cluster.until([&] {
      return !cluster.events[0].failures.empty() && !cluster.events[2].failures.empty();
    }));
    for (int i = 0; i < 100; ++i) cluster.step();
    for (const int survivor : {0, 2}) {
      EXPECT_EQ(cluster.events[survivor].failures.size(), 1u);
      ASSERT_EQ(cluster.events[survivor].failures[1].size(), 1u);
      EXPECT_THAT(cluster.events[survivor].failures[1][0], HasSubstr("connection"));
      EXPECT_TRUE(cluster.fabrics[survivor]->post_control(1, bytes_of("x")).ok());
      EXPECT_TRUE(cluster.fabrics[survivor]->is_connected(2 - survivor));
    }
  }
}

TEST(Fabric, a_peer_that_was_given_up_is_not_reported) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.begin().ok());
  cluster.fabrics[0]->connect(1);
  cluster.fabrics[0]->fail(1);
  EXPECT_TRUE(cluster.fabrics[0]->post_control(1, bytes_of("x")).ok());
  for (int i = 0; i < 1000; ++i) cluster.step();
  EXPECT_TRUE(cluster.events[0].failures.empty());
  EXPECT_TRUE(cluster.events[0].peers.empty());
}

TEST(Fabric, strangers_at_the_door_disturb_nobody) {
  Cluster cluster(2, only({"tcp"}));
  ASSERT_TRUE(cluster.begin().ok());
  Card card;
  ASSERT_TRUE(parse_card(cluster.cards[1], 1, card).ok());
  std::vector<Fd> strangers;
  for (int i = 0; i < 200; ++i) {  // more than are let wait
    Fd socket;
    ASSERT_EQ(start_connect(tcp_endpoint(card.tcp.back()), socket), 0);
    if (i % 3 == 0) ::send(socket.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
    strangers.push_back(std::move(socket));
    if (i % 50 == 0) cluster.step();
  }
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  EXPECT_TRUE(cluster.events[1].failures.empty());
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
}  // namespace rdmacoll
