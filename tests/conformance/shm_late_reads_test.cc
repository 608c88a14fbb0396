// A peer that fails waits for a reader for a limited time. Then it gives its memory back, though
// the reader may have been suspended meanwhile.
#include <array>

#include "conformance/shm_puppet.h"

namespace rdmacoll::conformance {
namespace {

std::vector<PieceRecord> in_memory(const std::vector<std::byte>& memory) {
  return {{reinterpret_cast<uint64_t>(memory.data()), memory.size()}};
}

RecordHeader publication(Traffic traffic) {
  RecordHeader header = Puppet::record(RecordKind::publish);
  header.count = 1;
  header.traffic = traffic;
  return header;
}

TEST(ShmLateReads, of_views_are_seen_before_a_poll) {
  Puppet puppet;
  puppet.connect();
  const std::vector<std::byte> memory(64);
  ASSERT_TRUE(puppet.transport->await(1, 0, 0, 7).ok());
  puppet.write_pieces(publication(Traffic::view), in_memory(memory));
  ASSERT_TRUE(puppet.sink.views.contains(7));
  EXPECT_EQ(puppet.transport->end_of(1, false), "");
  puppet.ring.end();
  EXPECT_NE(puppet.transport->end_of(1, false), "");
  EXPECT_TRUE(puppet.sink.failures.empty());
  puppet.socket.reset();
  puppet.poll();
  ASSERT_EQ(puppet.sink.failures[1].size(), 1u);
  EXPECT_EQ(puppet.transport->end_of(1, false), puppet.sink.failures[1][0]);
}

// A killed process changes nothing. Its memory in the pool stays, and other memory can't be read.
TEST(ShmLateReads, of_host_memory_are_none_after_the_end_of_a_process) {
  Puppet puppet;
  puppet.connect();
  puppet.socket.reset();
  EXPECT_EQ(puppet.transport->end_of(1, false), "");
  EXPECT_NE(puppet.transport->end_of(1, true), "");
}

// The peer has said before why it ends, and this is heard.
TEST(ShmLateReads, of_transfers_are_not_received) {
  Puppet puppet;
  puppet.connect();
  const std::vector<std::byte> memory(64);
  std::array<std::vector<std::byte>, 2> into{std::vector<std::byte>(64),
                                             std::vector<std::byte>(64)};
  const auto receive = [&](uint64_t sequence) {
    const Piece piece{into[sequence].data(), 64};
    ASSERT_TRUE(
        puppet.transport
            ->post_recv(
                {.peer = 1, .sequence = sequence, .pieces = {&piece, 1}, .cookie = sequence})
            .ok());
  };
  receive(0);
  RecordHeader early = publication(Traffic::transfer);
  early.sequence = 1;
  puppet.write_pieces(early, in_memory(memory));  // before its receive
  puppet.ring.end();
  puppet.write_pieces(publication(Traffic::transfer), in_memory(memory));
  receive(1);
  puppet.poll();
  puppet.write(Puppet::record(RecordKind::control));
  EXPECT_TRUE(puppet.sink.received_cookies.empty());
  EXPECT_EQ(puppet.sink.messages[1].size(), 1u);
  EXPECT_TRUE(puppet.sink.failures.empty());
  puppet.socket.reset();
  puppet.expect_failed("connection");
}

// The list of a publication lies in memory of the peer, too.
TEST(ShmLateReads, of_lists_do_not_hide_the_last_messages) {
  Puppet puppet;
  puppet.connect();
  puppet.ring.end();
  RecordHeader listed = publication(Traffic::view);
  listed.count = 1000;
  listed.extra = 8;  // nothing is there any more
  puppet.write(listed);
  puppet.write(Puppet::record(RecordKind::control));
  EXPECT_EQ(puppet.sink.messages[1].size(), 1u);
  EXPECT_TRUE(puppet.sink.failures.empty());
}

TEST(ShmLateReads, are_announced_before_memory_is_given_back) {
  Puppet puppet;
  puppet.connect();
  EXPECT_EQ(puppet.their_indexes()->has_ended.load(), 0u);
  puppet.transport->fail(1);
  EXPECT_EQ(puppet.their_indexes()->has_ended.load(), 1u);
}

}  // namespace
}  // namespace rdmacoll::conformance
