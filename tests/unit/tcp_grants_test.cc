// Grants of data that has come before its receive. The sender does not wait for them.
#include <gtest/gtest.h>

#include "unit/tcp_fixture.h"

namespace rdmacoll::tcp_test {
namespace {

// Posts a receive for data that has come, and expects that it is done at once.
void receive(Puppet& puppet, uint64_t sequence, std::size_t bytes) {
  std::vector<std::byte> place(bytes);
  const Piece piece{place.data(), bytes};
  bool is_done = false;
  ASSERT_TRUE(puppet.transport.post_recv({1, 0, sequence, {&piece, 1}, sequence, &is_done}).ok());
  EXPECT_TRUE(is_done);
  EXPECT_EQ(place, random_bytes(bytes, sequence));
}

void send_ahead(Puppet& puppet, uint64_t sequence, std::size_t bytes) {
  puppet.write({.kind = tcp::Kind::eager,
                .epoch = 7,
                .bytes = static_cast<uint32_t>(bytes),
                .sequence = sequence});
  puppet.write(random_bytes(bytes, sequence));
  puppet.settle();
}

// The kinds of the frames without payload that the transport has written.
std::vector<tcp::Kind> written(Puppet& puppet) {
  puppet.settle();
  std::vector<tcp::Kind> kinds;
  std::array<std::byte, tcp::kHeaderBytes> bytes;
  while (::recv(puppet.wire.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size())) {
    tcp::Header header;
    EXPECT_EQ(tcp::decode(bytes, 7, header), "");
    kinds.push_back(header.kind);
  }
  return kinds;
}

TEST(TcpGrants, of_data_that_has_come_go_with_the_next_output) {
  Puppet puppet;
  for (const uint64_t sequence : {3, 4}) {
    send_ahead(puppet, sequence, 100);
    receive(puppet, sequence, 100);
  }
  EXPECT_EQ(written(puppet), std::vector<tcp::Kind>{});
  EXPECT_TRUE(puppet.transport.flushed());
  EXPECT_TRUE(puppet.transport.arm()) << "a rank may sleep on them";
  ASSERT_TRUE(puppet.transport.post_control(1, {}).ok());
  EXPECT_EQ(written(puppet), (std::vector{tcp::Kind::control, tcp::Kind::grant, tcp::Kind::grant}));
  EXPECT_TRUE(puppet.events.received_cookies.empty());
}

TEST(TcpGrants, go_alone_when_they_hold_half_of_the_eager_budget) {
  Puppet puppet;
  constexpr std::size_t kBytes = tcp::kEagerBytes;
  constexpr std::size_t kCount = kEagerBytesOfPeer / 2 / (kBytes + tcp::kEagerCost) + 1;
  for (uint64_t sequence = 0; sequence + 1 < kCount; ++sequence) {
    send_ahead(puppet, sequence, kBytes);
    receive(puppet, sequence, kBytes);
  }
  EXPECT_EQ(written(puppet), std::vector<tcp::Kind>{});
  send_ahead(puppet, kCount, kBytes);
  receive(puppet, kCount, kBytes);
  EXPECT_EQ(written(puppet), std::vector(kCount, tcp::Kind::grant));
}

TEST(TcpGrants, go_instead_of_a_heartbeat) {
  Puppet puppet;
  send_ahead(puppet, 0, 100);
  receive(puppet, 0, 100);
  puppet.clock.time = puppet.transport.next_deadline();
  EXPECT_EQ(written(puppet), std::vector{tcp::Kind::grant});
}

// The data may still come, and its sender may wait for the grant.
TEST(TcpGrants, of_data_that_has_not_come_go_at_once) {
  Puppet puppet;
  std::byte place{};
  const Piece piece{&place, 1};
  bool is_done = false;
  ASSERT_TRUE(puppet.transport.post_recv({1, 0, 0, {&piece, 1}, 5, &is_done}).ok());
  EXPECT_FALSE(is_done);
  EXPECT_EQ(written(puppet), std::vector{tcp::Kind::grant});
}

// The sender's budget is used up although all receives are posted, and it goes on.
TEST(TcpGrants, that_wait_stop_no_sender) {
  Pair pair;
  constexpr uint64_t kCount = 3 * kEagerBytesOfPeer / tcp::kEagerBytes;
  const std::vector<std::byte> data = random_bytes(tcp::kEagerBytes, 1);
  std::vector<std::byte> place(data.size());
  const Piece source{const_cast<std::byte*>(data.data()), data.size()};
  const Piece target{place.data(), place.size()};
  for (uint64_t sequence = 0; sequence < kCount; ++sequence) {
    ASSERT_TRUE(pair.a.post_send({1, 0, sequence, {&source, 1}, sequence}).ok());
  }
  pair.settle();
  std::size_t done_at_once = 0;
  for (uint64_t sequence = 0; sequence < kCount; ++sequence) {
    bool is_done = false;
    ASSERT_TRUE(pair.b.post_recv({0, 0, sequence, {&target, 1}, sequence, &is_done}).ok());
    done_at_once += is_done ? 1 : 0;
    pair.settle();
  }
  EXPECT_GT(done_at_once, 0u);
  EXPECT_EQ(done_at_once + pair.at_b.received_cookies.size(), kCount);
  EXPECT_EQ(place, data);
}

}  // namespace
}  // namespace rdmacoll::tcp_test
