// Several TCP streams between two ranks: how they connect, and the error for a missing stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "unit/fabric_fixture.h"
#include "unit/no_descriptors.h"

namespace rdmacoll::fabric_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Edit streams(int count, double start_timeout_s = 30) {
  return [=](FabricOptions& options) {
    options.config.tcp_streams = count;
    options.config.start_timeout_s = start_timeout_s;
  };
}

bool has_streams(const Cluster& cluster, int rank, uint64_t count) {
  return cluster.fabrics[rank]->counters().connections == count;
}

TEST(FabricStreams, come_after_the_first_and_between_nodes_alone) {
  Cluster cluster(3, streams(4));
  ASSERT_TRUE(cluster.begin({0, 0, 2}).ok());
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  ASSERT_TRUE(cluster.until([&] {
    return has_streams(cluster, 0, 5) && has_streams(cluster, 1, 5) && has_streams(cluster, 2, 8);
  }));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(cluster.events[rank].peers.size(), 2u);
    EXPECT_EQ(cluster.fabrics[rank]->counters().handshakes, rank == 2 ? 8u : 5u);
  }
  EXPECT_EQ(cluster.fabrics[2]->summary(), "tcp (2 peers)");

  constexpr std::size_t kBytes = 8 << 20;
  std::vector<std::byte> from(kBytes, std::byte{42}), to(kBytes);
  const Piece source{from.data(), kBytes}, target{to.data(), kBytes};
  ASSERT_TRUE(cluster.fabrics[2]->post_send({0, 1, 0, {&source, 1}, 7}).ok());
  ASSERT_TRUE(cluster.fabrics[0]->post_recv({2, 1, 0, {&target, 1}, 8}).ok());
  ASSERT_TRUE(cluster.until([&] {
    return cluster.events[0].received_cookies.size() == 1 && cluster.fabrics[2]->flushed();
  }));
  EXPECT_TRUE(from == to);
  EXPECT_GT(cluster.fabrics[2]->counters().bytes_striped, 0u);
}

// The called rank need not have requested the connection.
TEST(FabricStreams, a_caller_is_let_in_with_all_of_them) {
  Cluster cluster(2, streams(3));
  ASSERT_TRUE(cluster.begin({0, 1}).ok());
  cluster.fabrics[0]->connect(1);
  ASSERT_TRUE(
      cluster.until([&] { return has_streams(cluster, 0, 3) && has_streams(cluster, 1, 3); }));
  while (cluster.step()) {
  }
  EXPECT_FALSE(cluster.fabrics[0]->needs_poll());
  EXPECT_FALSE(cluster.fabrics[1]->needs_poll());
  EXPECT_TRUE(cluster.events[0].failures.empty() && cluster.events[1].failures.empty());
}

TEST(FabricStreams, one_that_cannot_be_called_is_named) {
  Cluster cluster(2, streams(3));
  ASSERT_TRUE(cluster.begin({0, 1}).ok());
  cluster.connect_all();
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[0].peers.empty(); }));
  {
    const NoDescriptors none;
    ASSERT_TRUE(cluster.until([&] { return !cluster.events[0].failures.empty(); }));
  }
  EXPECT_THAT(cluster.events[0].failures[1][0],
              AllOf(HasSubstr(" of 3 failed: rank 0 ("), HasSubstr("cannot call it: "),
                    HasSubstr("too many open files: all "), HasSubstr("ulimit -n"),
                    HasSubstr("RDMACOLL_TCP_STREAMS=1")));
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[1].failures.empty(); }));
  for (int i = 0; i < 100; ++i) cluster.step();
  EXPECT_EQ(cluster.events[0].failures[1].size(), 1u);
  EXPECT_EQ(cluster.events[1].failures[0].size(), 1u);
  EXPECT_FALSE(cluster.fabrics[0]->is_connected(1));
  EXPECT_FALSE(cluster.fabrics[0]->needs_poll());
}

TEST(FabricStreams, a_caller_that_opens_too_few_is_named) {
  Cluster cluster(2,
                  [](FabricOptions& options) { streams(options.rank == 0 ? 1 : 3, 0.3)(options); });
  ASSERT_TRUE(cluster.begin({0, 1}).ok());
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[1].failures.empty(); }));
  EXPECT_EQ(
      cluster.events[1].failures[0][0],
      "it opened 1 of 3 streams (RDMACOLL_TCP_STREAMS=1 does with the first one, where a firewall "
      "counts connections) to this rank within 0.3 s");
  EXPECT_FALSE(cluster.fabrics[1]->is_connected(0));
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[0].failures.empty(); }));
}

TEST(FabricStreams, one_that_is_refused_is_named) {
  Cluster cluster(2,
                  [](FabricOptions& options) { streams(options.rank == 0 ? 2 : 1, 0.3)(options); });
  ASSERT_TRUE(cluster.begin({0, 1}).ok());
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[0].failures.empty(); }));
  EXPECT_THAT(cluster.events[0].failures[1][0],
              AllOf(HasSubstr("stream 2 of 2 failed: no connection after 0.3 s"),
                    HasSubstr("the handshake failed: it takes no stream 2")));
  ASSERT_TRUE(cluster.until([&] { return !cluster.events[1].failures.empty(); }));
}

TEST(FabricStreams, a_peer_that_ends_while_they_come_is_reported_once) {
  for (const int ends : {0, 1}) {
    Cluster cluster(2, streams(8));
    ASSERT_TRUE(cluster.begin({0, 1}).ok());
    cluster.connect_all();
    ASSERT_TRUE(cluster.until([&] { return !cluster.events[ends].peers.empty(); }));
    cluster.fabrics[ends].reset();
    const int other = 1 - ends;
    ASSERT_TRUE(cluster.until([&] { return !cluster.events[other].failures.empty(); }));
    for (int i = 0; i < 1000; ++i) cluster.step();
    EXPECT_EQ(cluster.events[other].failures[ends].size(), 1u);
    EXPECT_FALSE(cluster.fabrics[other]->needs_poll());
  }
}

TEST(FabricStreams, a_peer_that_was_given_up_is_not_reported) {
  for (const int gives_up : {0, 1}) {
    Cluster cluster(2, streams(8));
    ASSERT_TRUE(cluster.begin({0, 1}).ok());
    cluster.connect_all();
    ASSERT_TRUE(cluster.until([&] { return !cluster.events[gives_up].peers.empty(); }));
    cluster.fabrics[gives_up]->fail(1 - gives_up);
    for (int i = 0; i < 1000; ++i) cluster.step();
    EXPECT_TRUE(cluster.events[gives_up].failures.empty());
    EXPECT_FALSE(cluster.fabrics[gives_up]->needs_poll());
  }
}

TEST(FabricStreams, room_for_all_is_looked_for_before_anything_is_opened) {
  SteadyClock clock;
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(16 << 20, pool).ok());
  std::unique_ptr<Fabric> fabric;
  FabricOptions options{.size = 4};
  const NoDescriptors few(40);
  EXPECT_TRUE(Fabric::open(options, *pool, clock, fabric).ok());
  fabric.reset();
  options.config.tcp_streams = 8;
  const Status status = Fabric::open(options, *pool, clock, fabric);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("RLIMIT_NOFILE"), HasSubstr("ulimit -n")));
}

TEST(FabricStreams, leave_no_descriptor_behind) {
  const int before = open_descriptors();
  {
    Cluster cluster(2, streams(8));
    ASSERT_TRUE(cluster.begin({0, 1}).ok());
    cluster.connect_all();
    ASSERT_TRUE(cluster.until([&] { return has_streams(cluster, 1, 8); }));
  }
  {
    Cluster cluster(2, streams(8));  // destroyed while the streams connect
    ASSERT_TRUE(cluster.begin({0, 1}).ok());
    cluster.connect_all();
    ASSERT_TRUE(cluster.all_meet());
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace rdmacoll::fabric_test
