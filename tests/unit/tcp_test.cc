#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "transport/tcp/tcp_transport.h"

namespace rdmacoll {
namespace {

using ::testing::HasSubstr;

struct ManualClock final : Clock {
  Nanoseconds time = kSecond;
  Nanoseconds now() const override { return time; }
};

struct Events final : Sink {
  std::vector<int> peers;
  std::vector<uint64_t> sent_cookies, received_cookies;
  std::vector<std::string> messages;
  std::map<int, std::vector<std::string>> failures;

  void connected(int peer) override { peers.push_back(peer); }
  void sent(uint64_t cookie) override { sent_cookies.push_back(cookie); }
  void received(uint64_t cookie) override { received_cookies.push_back(cookie); }
  void viewed(uint64_t, const View&) override { FAIL() << "tcp has no views"; }
  void control(int, std::span<const std::byte> message) override {
    messages.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  }
  void peer_failed(int peer, const std::string& cause) override { failures[peer].push_back(cause); }
};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::pair<Fd, Fd> socket_pair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

World world_of(int size, int rank) {
  World world{.job = "test", .epoch = 7, .rank = rank};
  world.members.resize(size);
  return world;
}

constexpr Nanoseconds kPeerTimeout = 5 * kSecond;

// Two ranks, connected.
struct Pair {
  ManualClock clock;
  TcpTransport a{world_of(2, 0), clock, kPeerTimeout};
  TcpTransport b{world_of(2, 1), clock, kPeerTimeout};
  Events at_a, at_b;

  Pair() {
    auto [left, right] = socket_pair();
    a.adopt(1, std::move(left));
    b.adopt(0, std::move(right));
    settle();
  }
  void settle() {
    while (a.poll(at_a) || b.poll(at_b)) {
    }
  }
};

// One rank whose peer is this test, byte by byte.
struct Puppet {
  ManualClock clock;
  TcpTransport transport{world_of(2, 0), clock, kPeerTimeout};
  Events events;
  Fd wire;

  Puppet() {
    auto [left, right] = socket_pair();
    transport.adopt(1, std::move(left));
    wire = std::move(right);
  }
  void write(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(wire.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void write(const tcp::Header& header) { write(tcp::encode(header)); }
  void settle() {
    while (transport.poll(events)) {
    }
  }
  std::string cause() {
    settle();
    const auto& causes = events.failures[1];
    EXPECT_EQ(causes.size(), 1u);
    return causes.empty() ? "" : causes[0];
  }
};

std::vector<std::byte> random_bytes(std::size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Tcp, reports_a_connection_once) {
  Pair pair;
  EXPECT_EQ(pair.at_a.peers, std::vector<int>{1});
  EXPECT_EQ(pair.at_b.peers, std::vector<int>{0});
  EXPECT_TRUE(pair.a.is_connected(1));
  EXPECT_EQ(pair.a.reach(1).transport, "tcp");
  EXPECT_FALSE(pair.a.reach(1).views);
}

TEST(Tcp, is_busy_before_it_is_connected) {
  ManualClock clock;
  TcpTransport transport(world_of(2, 0), clock, kPeerTimeout);
  EXPECT_TRUE(transport.post_control(1, {}).is_busy());
  EXPECT_TRUE(transport.post_send({.peer = 1}).is_busy());
  EXPECT_TRUE(transport.post_recv({.peer = 1}).is_busy());
}

TEST(Tcp, delivers_control_messages_in_order_and_of_every_size) {
  Pair pair;
  std::vector<std::string> sent;
  for (std::size_t size : {0, 1, 31, 32, 33, 1000, 16 * 1024, 16 * 1024 + 1, 100'000, 1 << 20}) {
    sent.emplace_back(size, static_cast<char>('a' + sent.size()));
    ASSERT_TRUE(pair.a.post_control(1, bytes_of(sent.back())).ok());
  }
  pair.settle();
  EXPECT_EQ(pair.at_b.messages, sent);
  EXPECT_EQ(pair.a.counters().control_messages, sent.size());
}

TEST(Tcp, says_busy_when_the_peer_does_not_read_control) {
  Puppet puppet;
  const std::string message(kControlBytesMax, 'x');
  int accepted = 0;
  while (puppet.transport.post_control(1, bytes_of(message)).ok()) {
    puppet.settle();
    ASSERT_LT(++accepted, 100);
  }
  EXPECT_GT(accepted, 1);
}

TEST(Tcp, sends_nothing_before_the_grant) {
  Pair pair;
  std::vector<std::byte> from = random_bytes(1000, 1), to(1000);
  const Piece source{from.data(), from.size()}, target{to.data(), to.size()};
  ASSERT_TRUE(pair.a.post_send({1, 3, 9, {&source, 1}, 70}).ok());
  pair.settle();
  EXPECT_EQ(pair.a.counters().bytes_sent, 0u);
  EXPECT_TRUE(pair.at_a.sent_cookies.empty());
  ASSERT_TRUE(pair.b.post_recv({0, 3, 9, {&target, 1}, 80}).ok());
  pair.settle();
  EXPECT_EQ(from, to);
  EXPECT_EQ(pair.at_a.sent_cookies, std::vector<uint64_t>{70});
  EXPECT_EQ(pair.at_b.received_cookies, std::vector<uint64_t>{80});
  EXPECT_EQ(pair.a.counters().bytes_sent, 1000u);
  EXPECT_EQ(pair.b.counters().bytes_received, 1000u);
}

TEST(Tcp, a_grant_may_come_long_before_the_send) {
  Pair pair;
  std::vector<std::byte> from = random_bytes(100, 2), to(100);
  const Piece source{from.data(), from.size()}, target{to.data(), to.size()};
  ASSERT_TRUE(pair.b.post_recv({0, 0, 5, {&target, 1}, 1}).ok());
  pair.settle();
  ASSERT_TRUE(pair.a.post_send({1, 0, 5, {&source, 1}, 2}).ok());
  pair.settle();
  EXPECT_EQ(from, to);
}

TEST(Tcp, moves_empty_transfers) {
  Pair pair;
  ASSERT_TRUE(pair.a.post_send({1, 0, 0, {}, 1}).ok());
  const Piece nothing{nullptr, 0};
  ASSERT_TRUE(pair.b.post_recv({0, 0, 0, {&nothing, 1}, 2}).ok());
  pair.settle();
  EXPECT_EQ(pair.at_a.sent_cookies, std::vector<uint64_t>{1});
  EXPECT_EQ(pair.at_b.received_cookies, std::vector<uint64_t>{2});
}

TEST(Tcp, copies_little_of_a_large_transfer) {
  Pair pair;
  constexpr std::size_t kBytes = 16 << 20;
  std::vector<std::byte> from = random_bytes(kBytes, 3), to(kBytes);
  const Piece source{from.data(), kBytes}, target{to.data(), kBytes};
  ASSERT_TRUE(pair.b.post_recv({0, 0, 0, {&target, 1}, 2}).ok());
  ASSERT_TRUE(pair.a.post_send({1, 0, 0, {&source, 1}, 1}).ok());
  pair.settle();
  EXPECT_TRUE(from == to);
  EXPECT_LT(pair.b.counters().bytes_copied, kBytes / 20);
}

TEST(Tcp, control_overtakes_a_large_transfer) {
  Pair pair;
  constexpr std::size_t kBytes = 32 << 20;
  std::vector<std::byte> from(kBytes), to(kBytes);
  const Piece source{from.data(), kBytes}, target{to.data(), kBytes};
  ASSERT_TRUE(pair.b.post_recv({0, 0, 0, {&target, 1}, 2}).ok());
  ASSERT_TRUE(pair.a.post_send({1, 0, 0, {&source, 1}, 1}).ok());
  pair.a.poll(pair.at_a);
  pair.b.poll(pair.at_b);
  ASSERT_TRUE(pair.a.post_control(1, bytes_of("now")).ok());
  while (pair.at_b.messages.empty()) {
    pair.a.poll(pair.at_a);
    pair.b.poll(pair.at_b);
  }
  EXPECT_TRUE(pair.at_b.received_cookies.empty());
  pair.settle();
  EXPECT_EQ(pair.at_b.received_cookies.size(), 1u);
}

TEST(Tcp, a_small_transfer_waits_for_one_chunk_of_a_large_one) {
  Pair pair;
  constexpr std::size_t kBytes = 64 << 20;
  std::vector<std::byte> from(kBytes), to(kBytes);
  const Piece big_from{from.data(), kBytes}, big_to{to.data(), kBytes};
  std::byte little[2] = {std::byte{1}, std::byte{2}};
  const Piece small_from{little, 1}, small_to{little + 1, 1};
  ASSERT_TRUE(pair.b.post_recv({0, 0, 0, {&big_to, 1}, 10}).ok());
  ASSERT_TRUE(pair.b.post_recv({0, 1, 0, {&small_to, 1}, 11}).ok());
  ASSERT_TRUE(pair.a.post_send({1, 0, 0, {&big_from, 1}, 20}).ok());
  ASSERT_TRUE(pair.a.post_send({1, 1, 0, {&small_from, 1}, 21}).ok());
  pair.settle();
  EXPECT_EQ(pair.at_b.received_cookies, (std::vector<uint64_t>{11, 10}));
  EXPECT_EQ(little[1], std::byte{1});
}

// Random sizes and cuts, both directions at once, posted in any order.
TEST(Tcp, moves_thousands_of_transfers_both_ways) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  Pair pair;
  constexpr int kTransfers = 3000;
  struct Job {
    std::vector<std::byte> from, to;
    std::vector<Piece> source, target;
  };
  const auto cut = [&](std::vector<std::byte>& bytes) {
    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t limit = std::max<std::size_t>(1, bytes.size() / (1 + random() % 200));
      const std::size_t length = std::min(bytes.size() - at, random() % (limit + 1));
      pieces.push_back({bytes.data() + at, length});
      at += length;
    }
    return pieces;
  };
  std::vector<Job> jobs(2 * kTransfers);
  for (int i = 0; i < 2 * kTransfers; ++i) {
    const std::size_t size = random() % 20 == 0 ? random() % 700'000 : random() % 300;
    jobs[i].from = random_bytes(size, seed + i);
    jobs[i].to.resize(size);
    jobs[i].source = cut(jobs[i].from);
    jobs[i].target = cut(jobs[i].to);
  }
  std::vector<int> posts(4 * kTransfers);  // job * 2 + (is a receive)
  std::iota(posts.begin(), posts.end(), 0);
  std::shuffle(posts.begin(), posts.end(), random);
  for (const int post : posts) {
    const int i = post / 2;
    const bool forth = i < kTransfers;
    const bool receive = post % 2 == 1;
    TcpTransport& transport = forth == receive ? pair.b : pair.a;
    const Transfer transfer{forth == receive ? 0 : 1, static_cast<Lane>(i % 5),
                            static_cast<uint64_t>(i), receive ? jobs[i].target : jobs[i].source,
                            static_cast<uint64_t>(i)};
    const Status status = receive ? transport.post_recv(transfer) : transport.post_send(transfer);
    ASSERT_TRUE(status.ok());
    if (random() % 8 == 0) pair.a.poll(pair.at_a);
    if (random() % 8 == 0) pair.b.poll(pair.at_b);
  }
  pair.settle();
  EXPECT_TRUE(pair.a.flushed());
  EXPECT_EQ(pair.at_a.sent_cookies.size(), static_cast<std::size_t>(kTransfers));
  EXPECT_EQ(pair.at_b.sent_cookies.size(), static_cast<std::size_t>(kTransfers));
  EXPECT_EQ(pair.at_a.received_cookies.size(), static_cast<std::size_t>(kTransfers));
  for (const Job& job : jobs) ASSERT_TRUE(job.from == job.to);
  EXPECT_TRUE(pair.at_a.failures.empty());
}

TEST(Tcp, says_busy_when_too_many_transfers_are_posted) {
  Pair pair;
  uint64_t posted = 0;
  while (pair.b.post_recv({0, 0, posted, {}, posted}).ok()) ASSERT_LT(++posted, 100'000u);
  EXPECT_EQ(posted, tcp::kTransfersMax);
  for (uint64_t i = 0; i < posted; ++i) ASSERT_TRUE(pair.a.post_send({1, 0, i, {}, i}).ok());
  EXPECT_TRUE(pair.a.post_send({1, 0, posted, {}, 0}).is_busy());
  pair.settle();
  EXPECT_EQ(pair.at_b.received_cookies.size(), posted);
  EXPECT_TRUE(pair.b.post_recv({0, 0, posted, {}, posted}).ok());
}

TEST(Tcp, delivers_what_came_before_the_end) {
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
  EXPECT_THAT(puppet.cause(), HasSubstr("closed its connection (process ended)"));
  EXPECT_EQ(puppet.events.messages, std::vector<std::string>{"bye"});
  EXPECT_EQ(puppet.events.received_cookies, std::vector<uint64_t>{5});
  EXPECT_EQ(place, std::byte{'z'});
}

TEST(Tcp, delivers_what_came_although_it_cannot_write_any_more) {
  Puppet puppet;
  puppet.settle();
  puppet.write({.kind = tcp::Kind::control, .epoch = 7, .bytes = 3});
  puppet.write(bytes_of("bye"));
  puppet.wire.reset();
  ASSERT_TRUE(puppet.transport.post_control(1, bytes_of("hello")).ok());
  EXPECT_THAT(puppet.cause(), HasSubstr("closed its connection"));
  EXPECT_EQ(puppet.events.messages, std::vector<std::string>{"bye"});
}

TEST(Tcp, a_failed_peer_is_reported_once_and_later_calls_are_dropped) {
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

TEST(Tcp, refuses_frames_that_are_wrong) {
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

TEST(Tcp, refuses_grants_that_do_not_fit) {
  std::byte place[8] = {};
  const Piece source{place, sizeof place};
  const tcp::Header grant{.kind = tcp::Kind::grant, .epoch = 7, .sequence = 5, .position = 9};
  {
    Puppet late;
    ASSERT_TRUE(late.transport.post_send({1, 0, 5, {&source, 1}, 1}).ok());
    late.write(grant);
    EXPECT_THAT(late.cause(), HasSubstr("granted 9 B for a transfer of 8 B"));
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
    Puppet twice;
    twice.write(grant);
    twice.write(grant);
    EXPECT_THAT(twice.cause(), HasSubstr("granted a transfer twice"));
  }
  {
    Puppet many;
    for (uint64_t i = 0; i <= tcp::kTransfersMax; ++i) {
      many.write({.kind = tcp::Kind::grant, .epoch = 7, .sequence = i});
      many.settle();
    }
    EXPECT_THAT(many.cause(), HasSubstr("more transfers than it may"));
  }
}

TEST(Tcp, garbage_of_any_kind_is_refused) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 2000; ++turn) {
    Puppet puppet;
    std::byte place[64];
    const Piece target{place, sizeof place};
    ASSERT_TRUE(puppet.transport.post_recv({1, 0, 5, {&target, 1}, 1}).ok());
    tcp::HeaderBytes frame = tcp::encode({.kind = static_cast<tcp::Kind>(1 + random() % 4),
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

TEST(Tcp, a_silent_peer_fails_and_a_speaking_one_does_not) {
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

TEST(Tcp, does_not_blame_a_peer_for_its_own_pause) {
  Pair pair;
  pair.clock.time += 100 * kPeerTimeout;
  pair.a.poll(pair.at_a);
  EXPECT_TRUE(pair.at_a.failures.empty());
}

TEST(Tcp, asks_to_be_polled_when_it_must_speak) {
  Pair pair;
  EXPECT_LE(pair.a.next_deadline(), pair.clock.time + kPeerTimeout / 5);
  pair.clock.time = pair.a.next_deadline();
  pair.a.poll(pair.at_a);
  EXPECT_GT(pair.a.next_deadline(), pair.clock.time);
}

TEST(Tcp, sleeps_only_when_nothing_is_to_be_done) {
  Pair pair;
  EXPECT_TRUE(pair.a.arm());
  ASSERT_TRUE(pair.a.post_control(1, bytes_of("x")).ok());
  EXPECT_FALSE(pair.a.arm());
  EXPECT_TRUE(pair.b.arm());
  EXPECT_FALSE(pair.a.flushed());
  while (pair.a.poll(pair.at_a)) {
  }
  EXPECT_TRUE(pair.a.arm());
  EXPECT_FALSE(pair.b.arm());
  pair.settle();
  EXPECT_TRUE(pair.b.arm());
  EXPECT_TRUE(pair.a.flushed());
}

TEST(Tcp, leaves_no_descriptor_behind) {
  const int before = open_descriptors();
  {
    Pair pair;
    EXPECT_GT(open_descriptors(), before);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace rdmacoll
