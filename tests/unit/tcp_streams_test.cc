// Several TCP streams to a peer: their data, refused frames, and their end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "unit/tcp_fixture.h"

namespace rdmacoll::tcp_test {
namespace {

using ::testing::HasSubstr;

TcpOptions streams(int count, uint64_t stripe_bytes = tcp::kStripeBytes) {
  return {.streams = {.count = count, .stripe_bytes = stripe_bytes}};
}

TEST(TcpStreams, share_a_large_transfer_without_a_copy) {
  Pair pair(streams(3));
  EXPECT_EQ(pair.a.counters().connections, 3u);
  EXPECT_EQ(pair.at_a.peers, std::vector<int>{1});
  constexpr std::size_t kBytes = (16 << 20) + 5;
  std::vector<std::byte> from = random_bytes(kBytes, 3), to(kBytes);
  const Piece source{from.data(), kBytes}, target{to.data(), kBytes};
  ASSERT_TRUE(pair.b.post_recv({0, 0, 0, {&target, 1}, 2}).ok());
  ASSERT_TRUE(pair.a.post_send({1, 0, 0, {&source, 1}, 1}).ok());
  pair.settle();
  EXPECT_TRUE(from == to);
  EXPECT_EQ(pair.at_a.sent_cookies, std::vector<uint64_t>{1});
  EXPECT_EQ(pair.at_b.received_cookies, std::vector<uint64_t>{2});
  EXPECT_EQ(pair.a.counters().bytes_sent, kBytes);
  EXPECT_EQ(pair.b.counters().bytes_received, kBytes);
  EXPECT_GT(pair.a.counters().bytes_striped, kBytes / 2);
  EXPECT_LT(pair.a.counters().bytes_striped, kBytes);
  EXPECT_LT(pair.b.counters().bytes_copied, kBytes / 20);
  EXPECT_TRUE(pair.a.flushed());
  EXPECT_TRUE(pair.a.arm() && pair.b.arm());
}

// The segments of a sum are such transfers.
TEST(TcpStreams, take_whole_transfers_that_are_no_longer_than_a_stripe) {
  Pair pair(streams(2));
  constexpr std::size_t kTransfers = 8, kBytes = tcp::kStripeBytes;
  std::vector<std::vector<std::byte>> from, to;
  for (std::size_t i = 0; i < kTransfers; ++i) {
    from.push_back(random_bytes(kBytes, i));
    to.emplace_back(kBytes);
    const Piece source{from[i].data(), kBytes}, target{to[i].data(), kBytes};
    ASSERT_TRUE(pair.b.post_recv({0, 0, i, {&target, 1}, i}).ok());
    ASSERT_TRUE(pair.a.post_send({1, 0, i, {&source, 1}, i}).ok());
  }
  pair.settle();
  EXPECT_TRUE(from == to);
  EXPECT_EQ(pair.at_a.sent_cookies.size(), kTransfers);
  EXPECT_EQ(pair.at_b.received_cookies.size(), kTransfers);
  EXPECT_GE(pair.a.counters().bytes_striped, 2 * kBytes);
}

TEST(TcpStreams, carry_nothing_small) {
  Pair pair(streams(3));
  for (std::size_t bytes = 1; bytes <= tcp::kStripeBytes; bytes *= 4) {
    std::vector<std::byte> from = random_bytes(bytes, bytes), to(bytes);
    const Piece source{from.data(), bytes}, target{to.data(), bytes};
    ASSERT_TRUE(pair.a.post_control(1, from).ok());
    ASSERT_TRUE(pair.b.post_recv({0, 0, bytes, {&target, 1}, 2}).ok());
    ASSERT_TRUE(pair.a.post_send({1, 0, bytes, {&source, 1}, 1}).ok());
    pair.settle();
    EXPECT_TRUE(from == to);
  }
  EXPECT_EQ(pair.a.counters().bytes_striped, 0u);
}

// Control, small and large transfers of many pieces, both ways, posted in any order.
TEST(TcpStreams, move_what_one_stream_moves) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  Pair pair(streams(4, 16 * 1024));
  struct Job {
    std::vector<std::byte> from, to;
    std::vector<Piece> source, target;
  };
  const auto cut = [&](std::vector<std::byte>& bytes) {
    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t length =
          std::min<std::size_t>(bytes.size() - at, 1 + random() % (1 + bytes.size() / 3));
      pieces.push_back({bytes.data() + at, length});
      at += length;
    }
    return pieces;
  };
  constexpr int kJobs = 400;
  std::vector<Job> jobs(kJobs);
  for (Job& job : jobs) {
    const std::size_t size = random() % 4 == 0 ? random() % 300 : random() % 900'000;
    job.from = random_bytes(size, random());
    job.to.resize(size);
    job.source = cut(job.from);
    job.target = cut(job.to);
  }
  std::vector<int> posts(2 * kJobs);
  std::iota(posts.begin(), posts.end(), 0);
  std::shuffle(posts.begin(), posts.end(), random);
  std::vector<std::string> said;
  for (const int post : posts) {
    const int i = post / 2;
    const bool forth = i % 2 == 0, is_receive = post % 2 == 1;
    TcpTransport& transport = forth == is_receive ? pair.b : pair.a;
    const auto number = static_cast<uint64_t>(i);
    const Transfer transfer{forth == is_receive ? 0 : 1, static_cast<Lane>(i % 5), number,
                            is_receive ? jobs[i].target : jobs[i].source, number};
    ASSERT_TRUE((is_receive ? transport.post_recv(transfer) : transport.post_send(transfer)).ok());
    if (random() % 4 == 0) pair.a.poll(pair.at_a);
    if (random() % 4 == 0) pair.b.poll(pair.at_b);
    said.push_back(std::to_string(post));
    ASSERT_TRUE(pair.a.post_control(1, bytes_of(said.back())).ok());
  }
  pair.settle();
  EXPECT_TRUE(pair.at_a.failures.empty() && pair.at_b.failures.empty());
  for (const Job& job : jobs) ASSERT_TRUE(job.from == job.to);
  EXPECT_EQ(pair.at_a.sent_cookies.size() + pair.at_b.sent_cookies.size(), jobs.size());
  EXPECT_EQ(pair.at_b.messages, said);
  EXPECT_GT(pair.a.counters().bytes_striped, 0u);
  EXPECT_GT(pair.b.counters().bytes_striped, 0u);
}

TEST(TcpStreams, one_that_comes_late_helps_from_then_on) {
  ManualClock clock;
  TcpTransport a(world_of(2, 0), clock, kPeerTimeout, streams(2));
  TcpTransport b(world_of(2, 1), clock, kPeerTimeout, streams(2));
  Events at_a, at_b;
  const auto settle = [&] {
    while (a.poll(at_a) || b.poll(at_b)) {
    }
  };
  auto [left, right] = socket_pair();
  a.adopt(1, std::move(left));
  b.adopt(0, std::move(right));
  constexpr std::size_t kBytes = 8 << 20;
  std::vector<std::byte> from = random_bytes(kBytes, 1), to(kBytes);
  const Piece source{from.data(), kBytes}, target{to.data(), kBytes};
  ASSERT_TRUE(a.post_send({1, 0, 0, {&source, 1}, 1}).ok());
  ASSERT_TRUE(b.post_recv({0, 0, 0, {&target, 1}, 1}).ok());
  for (int i = 0; i < 3; ++i) {
    a.poll(at_a);
    b.poll(at_b);
  }
  EXPECT_EQ(a.counters().bytes_striped, 0u);
  std::tie(left, right) = socket_pair();
  b.adopt_stream(0, 1, std::move(right));
  a.adopt_stream(1, 1, std::move(left));
  settle();
  EXPECT_TRUE(from == to);
  EXPECT_GT(a.counters().bytes_striped, 0u);
}

// A puppet with two streams, whose rank waits for 300,000 B in stripes of 100,000 B.
struct Awaiting : Puppet {
  std::vector<std::byte> place = std::vector<std::byte>(300'000);
  tcp::Header data{
      .kind = tcp::Kind::data, .epoch = 7, .bytes = 100'000, .sequence = 5, .position = 200'000};

  Awaiting() : Puppet(streams(2, 100'000)) {
    const Piece target{place.data(), place.size()};
    EXPECT_TRUE(transport.post_recv({1, 0, 5, {&target, 1}, 1}).ok());
    settle();
  }
  void frame(const Fd& to, const tcp::Header& header) {
    write(to, tcp::encode(header));
    for (std::size_t left = header.bytes; left > 0;) {
      const std::size_t some = std::min<std::size_t>(left, 20'000);
      write(to, random_bytes(some, left));
      settle();
      left -= some;
    }
    settle();
  }
};

TEST(TcpStreams, the_receive_is_done_when_all_bytes_are_there) {
  Awaiting last_on_first;
  last_on_first.frame(last_on_first.beside, last_on_first.data);
  last_on_first.data.position = 0;
  last_on_first.data.bytes = 200'000;
  EXPECT_TRUE(last_on_first.events.received_cookies.empty());
  last_on_first.frame(last_on_first.wire, last_on_first.data);
  EXPECT_EQ(last_on_first.events.received_cookies, std::vector<uint64_t>{1});

  Awaiting last_beside;
  last_beside.data.bytes = 200'000;
  last_beside.data.position = 0;
  last_beside.frame(last_beside.wire, last_beside.data);
  EXPECT_TRUE(last_beside.events.received_cookies.empty());
  last_beside.data.bytes = 100'000;
  last_beside.data.position = 200'000;
  last_beside.frame(last_beside.beside, last_beside.data);
  EXPECT_EQ(last_beside.events.received_cookies, std::vector<uint64_t>{1});
}

TEST(TcpStreams, refuse_what_does_not_fit) {
  using tcp::Header;
  using tcp::Kind;
  const Header good = Awaiting().data;
  const auto with = [&](auto change) {
    Header header = good;
    change(header);
    return header;
  };
  const std::vector<std::pair<Header, std::string>> cases = {
      {{.kind = Kind::control, .epoch = 7, .bytes = 1}, "which belongs on the first stream"},
      {{.kind = Kind::grant, .epoch = 7, .position = 1}, "which belongs on the first stream"},
      {{.kind = Kind::eager, .epoch = 7, .bytes = 1}, "which belongs on the first stream"},
      {{.kind = Kind::heartbeat, .epoch = 8}, "epoch 8, not 7"},
      {with([](Header& h) { h.sequence = 6; }), "data without a grant at byte 200000"},
      {with([](Header& h) { h.bytes = 99'999; }), "a stripe of 99999 B of 300000 B at byte 200000"},
      {with([](Header& h) { h.position = 200'001; }), "a stripe of 100000 B of 300000 B"},
      {with([](Header& h) { h.position = 300'000; }), "a stripe of 100000 B of 300000 B"},
  };
  for (const auto& [header, expected] : cases) {
    SCOPED_TRACE(expected);
    Awaiting puppet;
    puppet.write(puppet.beside, tcp::encode(header));
    const std::string cause = puppet.cause();
    EXPECT_THAT(cause, HasSubstr(expected));
    EXPECT_THAT(cause, HasSubstr("stream 2 of 2 failed: sent "));
    EXPECT_TRUE(puppet.events.received_cookies.empty());
  }
  for (const bool is_first : {false, true}) {  // the stream that sends bytes a second time
    Awaiting twice;
    twice.frame(twice.beside, twice.data);
    if (is_first) {
      twice.data.position = 0;
      twice.data.bytes = 200'001;
      twice.write(twice.data);
      EXPECT_THAT(twice.cause(), HasSubstr("sent too much data"));
    } else {
      twice.write(twice.beside, tcp::encode(twice.data));
      EXPECT_THAT(twice.cause(), HasSubstr("sent a stripe twice at byte 200000"));
    }
  }
  Awaiting begun;  // the first stream has begun a frame that overlaps this stripe
  begun.data.position = 0;
  begun.data.bytes = 200'001;
  begun.write(begun.data);
  begun.settle();
  begun.data.position = 200'000;
  begun.data.bytes = 100'000;
  begun.write(begun.beside, tcp::encode(begun.data));
  EXPECT_THAT(begun.cause(), HasSubstr("sent a stripe twice"));
}

TEST(TcpStreams, one_that_ends_alone_is_named) {
  Puppet puppet(streams(2));
  puppet.settle();
  puppet.beside.reset();
  puppet.settle();
  EXPECT_TRUE(puppet.events.failures.empty()) << "the first stream may still say why";
  EXPECT_LE(puppet.transport.next_deadline(), puppet.clock.time + kSecond);
  puppet.clock.time = puppet.transport.next_deadline();
  EXPECT_EQ(puppet.cause(),
            "stream 2 of 2 failed: closed by the other end, or on the way "
            "(RDMACOLL_TCP_STREAMS=1 does with the first one)");
}

TEST(TcpStreams, both_ends_name_the_one_that_broke) {
  Puppet puppet(streams(2));
  puppet.settle();
  puppet.beside.reset();
  puppet.settle();
  puppet.clock.time += 900 * kMillisecond;
  puppet.wire.reset();  // the peer has found the failure first
  EXPECT_THAT(puppet.cause(), HasSubstr("stream 2 of 2 failed: closed by the other end"));
}

TEST(TcpStreams, a_process_that_ends_is_told_by_the_first_behind_its_last_words) {
  Puppet puppet(streams(2));
  puppet.settle();
  puppet.beside.reset();
  puppet.settle();
  puppet.write({.kind = tcp::Kind::control, .epoch = 7, .bytes = 3});
  puppet.write(bytes_of("bye"));
  puppet.wire.reset();
  EXPECT_EQ(puppet.cause(), "closed its connection (the process ended, or left)");
  EXPECT_EQ(puppet.events.messages, std::vector<std::string>{"bye"});
}

// A packet of it was lost, and is sent again after 200 ms.
TEST(TcpStreams, a_first_one_whose_end_is_late_still_tells) {
  Puppet puppet(streams(2));
  puppet.settle();
  puppet.beside.reset();
  puppet.settle();
  puppet.clock.time += 220 * kMillisecond;
  puppet.settle();
  EXPECT_TRUE(puppet.events.failures.empty());
  puppet.write({.kind = tcp::Kind::control, .epoch = 7, .bytes = 3});
  puppet.write(bytes_of("bye"));
  puppet.wire.reset();
  EXPECT_EQ(puppet.cause(), "closed its connection (the process ended, or left)");
  EXPECT_EQ(puppet.events.messages, std::vector<std::string>{"bye"});
}

TEST(TcpStreams, what_came_over_any_before_the_end_is_delivered) {
  Awaiting puppet;
  puppet.data.position = 0;
  puppet.data.bytes = 200'000;
  puppet.frame(puppet.wire, puppet.data);
  puppet.data.position = 200'000;
  puppet.data.bytes = 100'000;
  puppet.write(puppet.beside, tcp::encode(puppet.data));
  puppet.write(puppet.beside, random_bytes(100'000, 1));
  puppet.beside.reset();
  puppet.wire.reset();
  puppet.settle();
  EXPECT_EQ(puppet.events.received_cookies, std::vector<uint64_t>{1});
  EXPECT_EQ(puppet.events.failures[1].size(), 1u);
}

TEST(TcpStreams, one_that_is_silent_fails_and_one_that_speaks_does_not) {
  Pair pair(streams(2));
  for (int i = 0; i < 100; ++i) {
    pair.clock.time += kPeerTimeout / 10;
    pair.a.poll(pair.at_a);
    pair.b.poll(pair.at_b);
  }
  EXPECT_TRUE(pair.at_a.failures.empty());
  Puppet puppet(streams(2));  // only its first stream sends heartbeats
  while (puppet.events.failures.empty()) {
    puppet.clock.time += kPeerTimeout / 10;
    puppet.write({.kind = tcp::Kind::heartbeat, .epoch = 7});
    puppet.transport.poll(puppet.events);
  }
  EXPECT_THAT(puppet.cause(), HasSubstr("stream 2 of 2 failed: silent for 7500 ms"));
  for (int i = 0; i < 20; ++i) {  // b is stopped: as with one stream
    pair.clock.time += kPeerTimeout / 10;
    pair.a.poll(pair.at_a);
  }
  EXPECT_THAT(pair.at_a.failures[1], testing::ElementsAre(testing::StartsWith("silent for 5000")));
}

TEST(TcpStreams, what_is_not_wanted_hangs_up) {
  const int before = open_descriptors();
  {
    Pair pair(streams(2));
    const int open = open_descriptors();
    auto [left, right] = socket_pair();
    pair.a.adopt_stream(1, 1, std::move(left));  // a stream of this number exists
    right.reset();
    EXPECT_EQ(open_descriptors(), open);
    pair.a.fail(1);
    EXPECT_EQ(open_descriptors(), open - 2);
    std::tie(left, right) = socket_pair();
    pair.a.adopt_stream(1, 1, std::move(left));
    right.reset();
    EXPECT_EQ(open_descriptors(), open - 2);
    pair.settle();
    EXPECT_EQ(pair.at_b.failures[0].size(), 1u);
    EXPECT_EQ(open_descriptors(), open - 4);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace rdmacoll::tcp_test
