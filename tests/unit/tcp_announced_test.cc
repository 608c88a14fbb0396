// Transfers whose receives are about to be posted. Larger ones than others go ahead of their
// grants, and the receiver leaves them in the socket for one turn.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "unit/tcp_fixture.h"

namespace rdmacoll::tcp_test {
namespace {

constexpr std::size_t kLarge = tcp::kEagerBytes + 4096;
static_assert(kLarge <= tcp::kAnnouncedBytes);

struct Place {
  std::vector<std::byte> bytes;
  Piece piece;
  explicit Place(std::size_t count) : bytes(count), piece{bytes.data(), count} {}
  explicit Place(std::vector<std::byte> data)
      : bytes(std::move(data)), piece{bytes.data(), bytes.size()} {}
  // The transfer of these bytes with peer 1, which is announced.
  Transfer transfer(uint64_t sequence, bool* is_done = nullptr) const {
    return {.peer = 1,
            .sequence = sequence,
            .pieces = {&piece, 1},
            .cookie = sequence,
            .is_done = is_done,
            .is_announced = true};
  }
};

void write_large(Puppet& puppet, uint64_t sequence) {
  puppet.write({.kind = tcp::Kind::eager, .epoch = 7, .bytes = kLarge, .sequence = sequence});
  puppet.write(random_bytes(kLarge, sequence));
}

// The kind of the next frame that the transport has written, or none.
std::optional<tcp::Kind> next_frame(Puppet& puppet) {
  tcp::HeaderBytes bytes;
  if (::recv(puppet.wire.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) < 0) return {};
  tcp::Header header;
  EXPECT_EQ(tcp::decode(bytes, 7, header), "");
  return header.kind;
}

TEST(TcpAnnounced, large_transfers_go_ahead_of_their_grants_and_others_do_not) {
  for (const bool is_announced : {false, true}) {
    for (const std::size_t bytes : {kLarge, tcp::kAnnouncedBytes, tcp::kAnnouncedBytes + 1}) {
      Puppet puppet;
      const Place place(bytes);
      Transfer transfer = place.transfer(3);
      transfer.is_announced = is_announced;
      ASSERT_TRUE(puppet.transport.post_send(transfer).ok());
      puppet.settle();
      const bool goes_ahead = is_announced && bytes <= tcp::kAnnouncedBytes;
      EXPECT_EQ(next_frame(puppet) == tcp::Kind::eager, goes_ahead) << bytes;
    }
  }
}

TEST(TcpAnnounced, further_streams_share_large_transfers_so_they_wait_for_grants) {
  Puppet puppet({.streams = {.count = 2}});
  const Place place(kLarge);
  ASSERT_TRUE(puppet.transport.post_send(place.transfer(3)).ok());
  puppet.settle();
  EXPECT_EQ(next_frame(puppet), std::nullopt);
}

// The second stream is opened while transfers are under way, which it may not share.
TEST(TcpAnnounced, further_streams_take_nothing_of_a_transfer_that_went_ahead) {
  ManualClock clock;
  const TcpOptions options{.streams = {.count = 2}};
  TcpTransport from{world_of(2, 0), clock, kPeerTimeout, options};
  TcpTransport to{world_of(2, 1), clock, kPeerTimeout, options};
  Events at_from, at_to;
  auto [left, right] = socket_pair();
  from.adopt(1, std::move(left));
  to.adopt(0, std::move(right));
  const Place source(random_bytes(tcp::kAnnouncedBytes, 3));
  const std::array<Place, 2> targets = {Place(tcp::kAnnouncedBytes), Place(tcp::kAnnouncedBytes)};
  for (const uint64_t sequence : {0, 1}) {
    ASSERT_TRUE(from.post_send(source.transfer(sequence)).ok());
  }
  std::tie(left, right) = socket_pair();
  from.adopt_stream(1, 1, std::move(left));
  to.adopt_stream(0, 1, std::move(right));
  while (from.poll(at_from) || to.poll(at_to)) {
  }
  EXPECT_EQ(from.counters().bytes_striped, 0u);
  EXPECT_EQ(at_from.sent_cookies, (std::vector<uint64_t>{0, 1}));
  for (const uint64_t sequence : {0, 1}) {
    bool is_done = false;
    Transfer receive = targets[sequence].transfer(sequence, &is_done);
    receive.peer = 0;
    ASSERT_TRUE(to.post_recv(receive).ok());
    EXPECT_TRUE(is_done);
    EXPECT_EQ(targets[sequence].bytes, source.bytes);
  }
}

// The rest of the transfer is on its way, and the peer may need the output.
TEST(TcpAnnounced, output_does_not_wait_for_bytes_that_have_not_come) {
  Puppet puppet;
  puppet.write({.kind = tcp::Kind::eager, .epoch = 7, .bytes = kLarge, .sequence = 5});
  puppet.settle();
  ASSERT_TRUE(puppet.transport.post_control(1, {}).ok());
  puppet.settle();
  EXPECT_EQ(next_frame(puppet), tcp::Kind::control);
  EXPECT_TRUE(puppet.transport.arm());
}

TEST(TcpAnnounced, receive_that_is_posted_within_a_turn_gets_the_bytes_without_another_copy) {
  Puppet puppet;
  write_large(puppet, 5);
  EXPECT_TRUE(puppet.transport.poll(puppet.events));
  EXPECT_FALSE(puppet.transport.arm()) << "a rank may not sleep on bytes that wait for it";
  const Place place(kLarge);
  bool is_done = false;
  ASSERT_TRUE(puppet.transport.post_recv(place.transfer(5, &is_done)).ok());
  EXPECT_FALSE(is_done);
  EXPECT_TRUE(puppet.transport.poll(puppet.events));
  EXPECT_EQ(puppet.events.received_cookies, std::vector<uint64_t>{5});
  EXPECT_EQ(place.bytes, random_bytes(kLarge, 5));
  EXPECT_LT(puppet.transport.counters().bytes_copied, tcp::kEagerBytes / 2);
  EXPECT_EQ(next_frame(puppet), std::nullopt) << "the grant waits for other output";
}

TEST(TcpAnnounced, the_answer_to_a_transfer_takes_other_output_along) {
  Puppet puppet;
  write_large(puppet, 5);
  EXPECT_TRUE(puppet.transport.poll(puppet.events));
  const Place place(kLarge);
  ASSERT_TRUE(puppet.transport.post_recv(place.transfer(5)).ok());
  ASSERT_TRUE(puppet.transport.post_control(1, {}).ok());
  EXPECT_TRUE(puppet.transport.poll(puppet.events));
  EXPECT_EQ(next_frame(puppet), std::nullopt);
  ASSERT_TRUE(puppet.transport.post_control(1, {}).ok());
  EXPECT_TRUE(puppet.transport.poll(puppet.events));
  EXPECT_EQ(next_frame(puppet), tcp::Kind::control);
  EXPECT_EQ(next_frame(puppet), tcp::Kind::control);
  EXPECT_EQ(next_frame(puppet), tcp::Kind::grant);
}

TEST(TcpAnnounced, receive_that_is_late_holds_back_nothing_behind_its_bytes) {
  Puppet puppet;
  write_large(puppet, 5);
  puppet.write({.kind = tcp::Kind::control, .epoch = 7, .bytes = 4});
  puppet.write(bytes_of("next"));
  puppet.settle();
  EXPECT_EQ(puppet.events.messages, std::vector<std::string>{"next"});
  const Place place(kLarge);
  bool is_done = false;
  ASSERT_TRUE(puppet.transport.post_recv(place.transfer(5, &is_done)).ok());
  EXPECT_TRUE(is_done);
  EXPECT_EQ(place.bytes, random_bytes(kLarge, 5));
}

TEST(TcpAnnounced, end_of_the_peer_is_heard_behind_bytes_without_a_receive) {
  Puppet puppet;
  write_large(puppet, 5);
  puppet.wire.reset();
  EXPECT_NE(puppet.cause().find("closed its connection"), std::string::npos);
}

TEST(TcpAnnounced, receive_of_another_size_is_an_error) {
  for (const std::size_t bytes : {kLarge - 1, kLarge + 1}) {
    Puppet puppet;
    write_large(puppet, 5);
    EXPECT_TRUE(puppet.transport.poll(puppet.events));
    const Place place(bytes);
    ASSERT_TRUE(puppet.transport.post_recv(place.transfer(5)).ok());
    EXPECT_NE(puppet.cause(), "");
  }
}

}  // namespace
}  // namespace rdmacoll::tcp_test
