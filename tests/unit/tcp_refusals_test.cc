// Refused actions of a TCP peer, and how the transport reports the end of a peer.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "unit/tcp_fixture.h"

namespace rdmacoll::tcp_test {
namespace {

using ::testing::HasSubstr;

TEST(TcpRefusals, says_busy_when_too_many_transfers_are_posted) {
  Pair pair;
  uint64_t posted = 0;
  while (pair.b.post_recv({0, 0, posted, {}, posted}).ok()) ASSERT_LT(++posted, 100'000u);
  EXPECT_EQ(posted, kTransfersMax);
  for (uint64_t i = 0; i < posted; ++i) ASSERT_TRUE(pair.a.post_send({1, 0, i, {}, i}).ok());
  EXPECT_TRUE(pair.a.post_send({1, 0, posted, {}, 0}).is_busy());
  pair.settle();
  EXPECT_EQ(pair.at_b.received_cookies.size(), posted);
  EXPECT_TRUE(pair.b.post_recv({0, 0, posted, {}, posted}).ok());
}

// A file stands for a socket that the kernel does not let the transport watch.
TEST(TcpRefusals, a_peer_whose_socket_cannot_be_watched_has_failed) {
  ManualClock clock;
  TcpTransport transport{world_of(3, 0), clock, kPeerTimeout};
  Events events;
  for (const int peer : {1, 2}) {
    transport.adopt(peer, Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
    EXPECT_FALSE(transport.is_connected(peer));
  }
  transport.fail(2);
  EXPECT_TRUE(transport.needs_poll());
  EXPECT_FALSE(transport.arm());
  while (transport.poll(events)) {
  }
  EXPECT_EQ(events.failures.count(2), 0u);
  EXPECT_EQ(events.failures[1], std::vector<std::string>{"epoll_ctl: operation not permitted"});
  EXPECT_TRUE(transport.post_control(1, bytes_of("x")).ok());
  EXPECT_TRUE(transport.arm());
}

TEST(TcpRefusals, delivers_what_came_before_the_end) {
  Puppet puppet;
  std::byte place{};
  const Piece target{&place, 1};
  ASSERT_TRUE(puppet.transport.post_recv({1, 0, 4, {&target, 1}, 5}).ok());
  puppet.settle();
  puppet.write({.kind = tcp::Kind::control, .epoch = 7, .bytes = 3});
  puppet.write(bytes_of("bye"));
  puppet.write({.kind = tcp::Kind::data, .epoch = 7, .bytes = 1, .sequence = 4});
  puppet.write(bytes_of("z"));
  std::byte grant[tcp::kHeaderBytes];  // a socket that is closed with something unread says reset
  ASSERT_EQ(::recv(puppet.wire.get(), grant, sizeof grant, 0),
            static_cast<ssize_t>(tcp::kHeaderBytes));
  puppet.wire.reset();
  EXPECT_THAT(puppet.cause(), HasSubstr("closed its connection (the process ended, or left)"));
  EXPECT_EQ(puppet.events.messages, std::vector<std::string>{"bye"});
  EXPECT_EQ(puppet.events.received_cookies, std::vector<uint64_t>{5});
  EXPECT_EQ(place, std::byte{'z'});
}

TEST(TcpRefusals, delivers_what_came_although_it_cannot_write_any_more) {
  Puppet puppet;
  puppet.settle();
  puppet.write({.kind = tcp::Kind::control, .epoch = 7, .bytes = 3});
  puppet.write(bytes_of("bye"));
  puppet.wire.reset();
  ASSERT_TRUE(puppet.transport.post_control(1, bytes_of("hello")).ok());
  EXPECT_THAT(puppet.cause(), HasSubstr("closed its connection"));
  EXPECT_EQ(puppet.events.messages, std::vector<std::string>{"bye"});
}

TEST(TcpRefusals, a_failed_peer_is_reported_once_and_later_calls_are_dropped) {
  Pair pair;
  pair.b.fail(0);
  pair.settle();
  EXPECT_EQ(pair.at_a.failures[1].size(), 1u);
  EXPECT_TRUE(pair.at_b.failures.empty());
  for (TcpTransport* transport : {&pair.a, &pair.b}) {
    const int peer = transport == &pair.a ? 1 : 0;
    EXPECT_FALSE(transport->is_connected(peer));
    EXPECT_TRUE(transport->post_control(peer, bytes_of("x")).ok());
    EXPECT_TRUE(transport->post_send({.peer = peer}).ok());
    EXPECT_TRUE(transport->post_recv({.peer = peer}).ok());
  }
  pair.settle();
  EXPECT_EQ(pair.at_a.failures[1].size(), 1u);
  EXPECT_TRUE(pair.a.flushed());
}

TEST(TcpRefusals, refuses_frames_that_are_wrong) {
  using tcp::Header;
  using tcp::Kind;
  const std::vector<std::pair<Header, std::string>> cases = {
      {{.kind = Kind::heartbeat, .epoch = 8}, "epoch 8, not 7"},
      {{.kind = static_cast<Kind>(9), .epoch = 7}, "unknown kind 9"},
      {{.kind = static_cast<Kind>(0), .epoch = 7}, "unknown kind 0"},
      {{.kind = Kind::control, .epoch = 7, .bytes = 1u << 31}, "control message of 2147483648 B"},
      {{.kind = Kind::control, .lane = 1, .epoch = 7}, "control message with a lane"},
      {{.kind = Kind::grant, .epoch = 7, .bytes = 1}, "grant with a payload"},
      {{.kind = Kind::grant, .epoch = 7, .position = ~uint64_t{0}}, "a grant of"},
      {{.kind = Kind::heartbeat, .epoch = 7, .bytes = 1}, "heartbeat with a payload"},
      {{.kind = Kind::data, .epoch = 7, .bytes = 1u << 30}, "data frame of"},
      {{.kind = Kind::data, .lane = 3, .epoch = 7, .bytes = 1, .sequence = 12},
       "data without a grant (lane 3, sequence 12)"},
      {{.kind = Kind::data, .epoch = 7, .bytes = 1, .sequence = 5, .position = 2}, "at byte 2"},
      {{.kind = Kind::data, .epoch = 7, .bytes = 9, .sequence = 5}, "too much data"},
      {{.kind = Kind::data, .epoch = 7, .bytes = 0, .sequence = 5}, "empty piece"},
      {{.kind = Kind::eager, .epoch = 7, .bytes = 1u << 30}, "eager transfer of"},
      {{.kind = Kind::eager, .epoch = 7, .bytes = 1, .position = 2}, "eager transfer at byte 2"},
      {{.kind = Kind::eager, .epoch = 7, .bytes = 7, .sequence = 5},
       "sent 7 B for a transfer of 8 B (lane 0, sequence 5)"},
      {{.kind = Kind::eager, .epoch = 7, .bytes = 9, .sequence = 5}, "too much data"},
  };
  for (const auto& [header, expected] : cases) {
    SCOPED_TRACE(expected);
    Puppet puppet;
    std::byte place[8];
    const Piece target{place, sizeof place};
    ASSERT_TRUE(puppet.transport.post_recv({1, 0, 5, {&target, 1}, 1}).ok());
    puppet.settle();
    puppet.write(header);
    EXPECT_THAT(puppet.cause(), HasSubstr(expected));
    EXPECT_TRUE(puppet.events.received_cookies.empty());
  }
}

TEST(TcpRefusals, refuses_grants_that_do_not_fit) {
  std::byte place[8] = {};
  const Piece source{place, sizeof place};
  const tcp::Header grant{.kind = tcp::Kind::grant, .epoch = 7, .sequence = 5, .position = 9};
  {
    Puppet late;
    std::vector<std::byte> large(tcp::kEagerBytes + 1);
    const Piece waits{large.data(), large.size()};
    ASSERT_TRUE(late.transport.post_send({1, 0, 5, {&waits, 1}, 1}).ok());
    late.write(grant);
    EXPECT_THAT(late.cause(), HasSubstr(cat("granted 9 B for a transfer of ", large.size(), " B")));
  }
  {
    Puppet early;
    early.write(grant);
    early.settle();
    ASSERT_TRUE(early.transport.post_send({1, 0, 5, {&source, 1}, 1}).ok());
    EXPECT_FALSE(early.transport.arm());
    EXPECT_THAT(early.cause(), HasSubstr("granted 9 B for a transfer of 8 B"));
    EXPECT_TRUE(early.events.sent_cookies.empty());
  }
  {
    Puppet ahead;
    ASSERT_TRUE(ahead.transport.post_send({1, 0, 5, {&source, 1}, 1}).ok());
    ahead.settle();
    EXPECT_EQ(ahead.events.sent_cookies, std::vector<uint64_t>{1});
    ahead.write(grant);
    EXPECT_THAT(ahead.cause(), HasSubstr("granted 9 B for a transfer of 8 B"));
  }
  {
    Puppet twice;
    twice.write(grant);
    twice.write(grant);
    EXPECT_THAT(twice.cause(), HasSubstr("granted a transfer twice"));
  }
  {
    Puppet many;
    for (uint64_t i = 0; i <= kTransfersMax; ++i) {
      many.write({.kind = tcp::Kind::grant, .epoch = 7, .sequence = i});
      many.settle();
    }
    EXPECT_THAT(many.cause(), HasSubstr("more transfers than it may"));
  }
}

TEST(TcpRefusals, refuses_what_goes_ahead_and_does_not_fit) {
  tcp::Header eager{.kind = tcp::Kind::eager, .epoch = 7, .bytes = 1, .sequence = 5};
  {
    Puppet longer;
    std::byte place[8];
    const Piece target{place, sizeof place};
    longer.write(eager);
    longer.write(bytes_of("x"));
    longer.settle();
    ASSERT_TRUE(longer.transport.post_recv({1, 0, 5, {&target, 1}, 1}).ok());
    EXPECT_FALSE(longer.transport.arm());
    EXPECT_THAT(longer.cause(), HasSubstr("sent 1 B for a transfer of 8 B (lane 0, sequence 5)"));
    EXPECT_TRUE(longer.events.received_cookies.empty());
  }
  {
    Puppet twice;
    for (int i = 0; i < 2; ++i) {
      twice.write(eager);
      twice.write(bytes_of("x"));
    }
    EXPECT_THAT(twice.cause(), HasSubstr("sent a transfer twice (lane 0, sequence 5)"));
  }
  {
    Puppet many;
    eager.bytes = 0;
    for (; eager.sequence < kTransfersMax && many.events.failures.empty(); ++eager.sequence) {
      many.write(eager);
      many.settle();
    }
    EXPECT_THAT(many.cause(), HasSubstr("sent more than it may ahead of grants"));
  }
}

TEST(TcpRefusals, garbage_of_any_kind_is_refused) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 2000; ++turn) {
    Puppet puppet;
    std::byte place[64];
    const Piece target{place, sizeof place};
    ASSERT_TRUE(puppet.transport.post_recv({1, 0, 5, {&target, 1}, 1}).ok());
    tcp::HeaderBytes frame = tcp::encode({.kind = static_cast<tcp::Kind>(1 + random() % 5),
                                          .epoch = 7,
                                          .bytes = static_cast<uint32_t>(random() % 40),
                                          .sequence = 5});
    for (int flips = static_cast<int>(random() % 4); flips > 0; --flips) {
      frame[random() % frame.size()] = static_cast<std::byte>(random());
    }
    puppet.write(frame);
    puppet.write(random_bytes(random() % 100, random()));
    puppet.settle();
    puppet.wire.reset();
    puppet.settle();
    EXPECT_EQ(puppet.events.failures[1].size(), 1u);
  }
}

TEST(TcpRefusals, a_silent_peer_fails_and_a_speaking_one_does_not) {
  Pair pair;
  for (int i = 0; i < 100; ++i) {
    pair.clock.time += kPeerTimeout / 10;
    pair.a.poll(pair.at_a);
    pair.b.poll(pair.at_b);
  }
  EXPECT_TRUE(pair.at_a.failures.empty());
  for (int i = 0; i < 13; ++i) {  // b is stopped
    pair.clock.time += kPeerTimeout / 10;
    pair.a.poll(pair.at_a);
  }
  ASSERT_EQ(pair.at_a.failures[1].size(), 1u);
  EXPECT_THAT(pair.at_a.failures[1][0], HasSubstr("silent for 5000 ms"));
}

TEST(TcpRefusals, does_not_blame_a_peer_for_its_own_pause) {
  Pair pair;
  pair.clock.time += 100 * kPeerTimeout;
  pair.a.poll(pair.at_a);
  EXPECT_TRUE(pair.at_a.failures.empty());
}

}  // namespace
}  // namespace rdmacoll::tcp_test
