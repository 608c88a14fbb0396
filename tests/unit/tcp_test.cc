#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "unit/tcp_fixture.h"

namespace rdmacoll::tcp_test {
namespace {

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

TEST(Tcp, sends_nothing_large_before_the_grant) {
  Pair pair;
  constexpr std::size_t kBytes = tcp::kEagerBytes + 1;
  std::vector<std::byte> from = random_bytes(kBytes, 1), to(kBytes);
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
  EXPECT_EQ(pair.a.counters().bytes_sent, kBytes);
  EXPECT_EQ(pair.b.counters().bytes_received, kBytes);
}

// A wait for a grant would be a second trip.
TEST(Tcp, a_small_exchange_takes_one_way) {
  Pair pair;
  std::vector<std::byte> mine = random_bytes(8, 4), yours = random_bytes(8, 5), at_a(8), at_b(8);
  const Piece pieces[] = {{mine.data(), 8}, {yours.data(), 8}, {at_a.data(), 8}, {at_b.data(), 8}};
  ASSERT_TRUE(pair.a.post_recv({1, 0, 0, {&pieces[2], 1}, 1}).ok());
  ASSERT_TRUE(pair.a.post_send({1, 0, 0, {&pieces[0], 1}, 2}).ok());
  ASSERT_TRUE(pair.b.post_recv({0, 0, 0, {&pieces[3], 1}, 3}).ok());
  ASSERT_TRUE(pair.b.post_send({0, 0, 0, {&pieces[1], 1}, 4}).ok());
  pair.a.poll(pair.at_a);
  pair.b.poll(pair.at_b);
  pair.a.poll(pair.at_a);
  EXPECT_EQ(pair.at_b.received_cookies, std::vector<uint64_t>{3});
  EXPECT_EQ(pair.at_a.received_cookies, std::vector<uint64_t>{1});
  EXPECT_EQ(mine, at_b);
  EXPECT_EQ(yours, at_a);
  // With the receives posted nothing was kept aside.
  EXPECT_EQ(pair.a.counters().bytes_copied + pair.b.counters().bytes_copied, 16u);
}

TEST(Tcp, what_comes_before_its_receive_is_kept_aside) {
  Pair pair;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, tcp::kEagerBytes}) {
    SCOPED_TRACE(bytes);
    std::vector<std::byte> from = random_bytes(bytes, bytes), to(bytes);
    const Piece source{from.data(), bytes}, target{to.data(), bytes};
    pair.at_a.sent_cookies.clear();
    pair.at_b.received_cookies.clear();
    ASSERT_TRUE(pair.a.post_send({1, 3, bytes, {&source, 1}, 70}).ok());
    pair.settle();
    EXPECT_EQ(pair.at_a.sent_cookies, std::vector<uint64_t>{70});
    EXPECT_TRUE(pair.b.arm());
    ASSERT_TRUE(pair.b.post_recv({0, 3, bytes, {&target, 1}, 80}).ok());
    EXPECT_FALSE(pair.b.arm()) << "it has a receive to report";
    pair.settle();
    EXPECT_EQ(pair.at_b.received_cookies, std::vector<uint64_t>{80});
    EXPECT_EQ(from, to);
  }
}

TEST(Tcp, a_receive_that_is_posted_halfway_takes_both_halves) {
  Puppet puppet;
  const std::vector<std::byte> from = random_bytes(1000, 7);
  std::vector<std::byte> to(1000);
  const Piece target{to.data(), to.size()};
  puppet.write({.kind = tcp::Kind::eager, .lane = 2, .epoch = 7, .bytes = 1000, .sequence = 5});
  puppet.write(std::span(from).first(300));
  puppet.settle();
  ASSERT_TRUE(puppet.transport.post_recv({1, 2, 5, {&target, 1}, 6}).ok());
  puppet.settle();
  EXPECT_TRUE(puppet.events.received_cookies.empty());
  puppet.write(std::span(from).subspan(300));
  puppet.settle();
  EXPECT_EQ(puppet.events.received_cookies, std::vector<uint64_t>{6});
  EXPECT_EQ(from, to);
}

TEST(Tcp, no_more_goes_ahead_of_grants_than_is_kept_aside) {
  Pair pair;
  constexpr std::size_t kTransfers = 100, kBytes = 50'000;
  std::vector<std::vector<std::byte>> from, to;
  for (std::size_t i = 0; i < kTransfers; ++i) {
    from.push_back(random_bytes(kBytes, i));
    to.emplace_back(kBytes);
    const Piece source{from[i].data(), kBytes};
    ASSERT_TRUE(pair.a.post_send({1, 0, i, {&source, 1}, i}).ok());
  }
  pair.settle();
  EXPECT_GT(pair.a.counters().bytes_sent, eager_bytes_of_peer(2) / 2);
  EXPECT_LE(pair.a.counters().bytes_sent, eager_bytes_of_peer(2));
  for (std::size_t i = kTransfers; i-- > 0;) {
    const Piece target{to[i].data(), kBytes};
    ASSERT_TRUE(pair.b.post_recv({0, 0, i, {&target, 1}, i}).ok());
  }
  pair.settle();
  EXPECT_EQ(pair.at_b.received_cookies.size(), kTransfers);
  EXPECT_TRUE(from == to);
  // All transfers have been granted, so the same number of bytes may go ahead again.
  const Piece source{from[0].data(), kBytes};
  ASSERT_TRUE(pair.a.post_send({1, 0, kTransfers, {&source, 1}, kTransfers}).ok());
  pair.settle();
  EXPECT_EQ(pair.a.counters().bytes_sent, (kTransfers + 1) * kBytes);
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
}  // namespace rdmacoll::tcp_test
