// Callers that the fabric refuses, and how it reports a refusal and the end of a peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/text.h"
#include "unit/fabric_fixture.h"
#include "unit/no_descriptors.h"

namespace rdmacoll::fabric_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(FabricRefusals, leaders_that_contradict_each_other_are_refused) {
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

TEST(FabricRefusals, different_settings_are_refused_by_every_rank) {
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

TEST(FabricRefusals, a_card_that_is_no_card_is_refused) {
  Cluster cluster(2);
  int leader = -1;
  cluster.cards[1] = "{\"wire\":1}";
  EXPECT_EQ(cluster.fabrics[0]->probe_node(cluster.cards, leader).code(), Code::invalid);
  cluster.cards.pop_back();
  EXPECT_EQ(cluster.fabrics[0]->probe_node(cluster.cards, leader).code(), Code::invalid);
}

TEST(FabricRefusals, ranks_that_nothing_allowed_connects_are_told_so) {
  Cluster cluster(3, only({"shm"}));
  const Status status = cluster.begin({0, 0, 2});
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("RDMACOLL_TRANSPORT=shm"), HasSubstr("between rank 0"),
                    HasSubstr("and rank 2"), HasSubstr("different nodes"), HasSubstr("Add tcp")));
}

TEST(FabricRefusals, an_interface_that_does_not_exist_is_refused) {
  SteadyClock clock;
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(16 << 20, pool).ok());
  for (const int size : {1, 2}) {
    std::unique_ptr<Fabric> fabric;
    FabricOptions options{.size = size};
    options.config.interface = "nonsense7";
    const Status status = Fabric::open(std::move(options), *pool, clock, fabric);
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_THAT(status.message(), HasSubstr("RDMACOLL_INTERFACE=nonsense7"));
  }
}

// A connection of the former listener goes on, as connections of a rendezvous at the same address
// do.
TEST(FabricRefusals, a_port_is_taken_over_from_a_former_listener_and_refused_where_it_is_in_use) {
  Fd listener;
  const auto any = *SocketAddress::parse("127.0.0.1:0");
  ASSERT_TRUE(listen_at(tcp_endpoint(any), listener).ok());
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const SocketAddress address = local_address(listener.get());
  Fd caller;
  ASSERT_EQ(start_connect(tcp_endpoint(address), caller), 0);
  pollfd ready{.fd = listener.get(), .events = POLLIN};
  ASSERT_EQ(::poll(&ready, 1, 5000), 1);
  const Fd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);

  SteadyClock clock;
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(16 << 20, pool).ok());
  const auto open = [&](std::unique_ptr<Fabric>& fabric) {
    FabricOptions options{.size = 2};
    options.config.interface = "127.0.0.1";
    options.config.port = address.port();
    return Fabric::open(std::move(options), *pool, clock, fabric);
  };
  std::unique_ptr<Fabric> late, fabric;
  const Status taken = open(late);
  EXPECT_EQ(taken.code(), Code::invalid);
  EXPECT_THAT(taken.message(), AllOf(HasSubstr(address.text()), HasSubstr("RDMACOLL_PORT")));
  listener.reset();
  const Status opened = open(fabric);
  ASSERT_TRUE(opened.ok()) << opened.message();
  EXPECT_THAT(fabric->card(), HasSubstr(address.text()));
}

TEST(FabricRefusals, a_wrong_secret_is_refused_by_both_sides) {
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

TEST(FabricRefusals, another_epoch_or_job_is_refused) {
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

TEST(FabricRefusals, a_peer_that_never_listens_is_named_with_address_and_error) {
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

TEST(FabricRefusals, a_peer_that_never_calls_is_reported) {
  Cluster cluster(2, [](FabricOptions& options) { options.config.start_timeout_s = 0.2; });
  ASSERT_TRUE(cluster.begin().ok());
  cluster.fabrics[1]->connect(0);
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[1].failures.empty(); }));
  EXPECT_THAT(cluster.events[1].failures[0][0],
              HasSubstr("did not connect to this rank within 0.2"));
}

TEST(FabricRefusals, the_end_of_a_peer_is_reported_once_by_every_other) {
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
      const std::string& cause = cluster.events[survivor].failures[1][0];
      EXPECT_THAT(cause, HasSubstr("connection"));
      const bool has_views = transport == std::string_view("shm");
      EXPECT_EQ(cluster.fabrics[survivor]->end_of(1, false), has_views ? cause : "");
      EXPECT_EQ(cluster.fabrics[survivor]->end_of(2 - survivor, false), "");
      EXPECT_TRUE(cluster.fabrics[survivor]->post_control(1, bytes_of("x")).ok());
      EXPECT_TRUE(cluster.fabrics[survivor]->is_connected(2 - survivor));
    }
  }
}

TEST(FabricRefusals, a_peer_that_was_given_up_is_not_reported) {
  Cluster cluster(2);
  ASSERT_TRUE(cluster.begin().ok());
  cluster.fabrics[0]->connect(1);
  cluster.fabrics[0]->fail(1);
  EXPECT_TRUE(cluster.fabrics[0]->post_control(1, bytes_of("x")).ok());
  for (int i = 0; i < 1000; ++i) cluster.step();
  EXPECT_TRUE(cluster.events[0].failures.empty());
  EXPECT_TRUE(cluster.events[0].peers.empty());
}

TEST(FabricRefusals, too_few_descriptors_are_refused_before_anything_is_opened) {
  SteadyClock clock;
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(16 << 20, pool).ok());
  std::unique_ptr<Fabric> fabric;
  for (const int size : {1, 2, 100}) {
    const NoDescriptors few(8);
    const Status status = Fabric::open({.size = size}, *pool, clock, fabric);
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("RLIMIT_NOFILE"), HasSubstr("ulimit -n")));
  }
}

TEST(FabricRefusals, a_rank_without_descriptors_says_that_it_cannot_call) {
  Cluster cluster(2, only({"tcp"}));
  ASSERT_TRUE(cluster.begin().ok());
  const NoDescriptors none;
  cluster.fabrics[0]->connect(1);
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[0].failures.empty(); }));
  EXPECT_THAT(cluster.events[0].failures[1][0],
              AllOf(HasSubstr("rank 0 ("), HasSubstr("cannot call it: "),
                    HasSubstr("too many open files: all "), HasSubstr("ulimit -n")));
}

TEST(FabricRefusals, a_caller_is_turned_away_where_there_are_no_descriptors) {
  Cluster cluster(2, only({"tcp"}));
  ASSERT_TRUE(cluster.begin().ok());
  Card card;
  ASSERT_TRUE(parse_card(cluster.cards[1], 1, card).ok());
  cluster.fabrics[1]->connect(0);
  std::vector<Fd> callers(2);
  for (Fd& caller : callers) {  // the second one comes after the timeout
    ASSERT_EQ(start_connect(tcp_endpoint(card.tcp.back()), caller), 0);
    const NoDescriptors none;
    pollfd closed{.fd = caller.get(), .events = POLLRDHUP, .revents = 0};
    ASSERT_TRUE(cluster.until([&] { return ::poll(&closed, 1, 0) == 1; }));
    EXPECT_TRUE(cluster.events[1].failures.empty() || &caller == &callers[1]);
    if (&caller == &callers[0]) ::poll(nullptr, 0, 1100);
  }
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[1].failures.empty(); }));
  EXPECT_THAT(cluster.events[1].failures[0][0],
              AllOf(HasSubstr("rank 1 ("), HasSubstr("cannot let it in: too many open files")));
}

TEST(FabricRefusals, unknown_callers_disturb_nobody) {
  Cluster cluster(2, only({"tcp"}));
  ASSERT_TRUE(cluster.begin().ok());
  Card card;
  ASSERT_TRUE(parse_card(cluster.cards[1], 1, card).ok());
  std::vector<Fd> callers;
  for (int i = 0; i < 200; ++i) {  // more than may wait
    Fd socket;
    ASSERT_EQ(start_connect(tcp_endpoint(card.tcp.back()), socket), 0);
    if (i % 3 == 0) ::send(socket.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
    callers.push_back(std::move(socket));
    if (i % 50 == 0) cluster.step();
  }
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  EXPECT_TRUE(cluster.events[1].failures.empty());
}

}  // namespace
}  // namespace rdmacoll::fabric_test
