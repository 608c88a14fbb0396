// A limited number of small transfers go ahead of their receives. A sender then waits for a
// receiver that posts nothing. It loses nothing, and lets control messages and other transfers
// pass.
#include <malloc.h>

#include <cstdlib>
#include <cstring>

#include "conformance/harness.h"
#include "sanitized.h"
#include "transport/eager_budget.h"
#include "transport/queues.h"

namespace rdmacoll::conformance {
namespace {

// RDMACOLL_TEST_AHEAD sets another number. A million transfers take long in a build with checks.
std::size_t transfers() {
  const char* asked = std::getenv("RDMACOLL_TEST_AHEAD");
  return asked == nullptr ? 40'000 : std::strtoull(asked, nullptr, 10);
}

constexpr int kIdlePolls = 3000;
// Both ranks together keep at most so many bytes of a stream that nobody receives. These are eager
// transfers, and transfers that wait.
constexpr std::size_t kHeapBytesMax = std::size_t{48} << 20;

// One direction: value i travels as transfer i.
struct Stream {
  int from = 0;
  int to = 1;
  std::vector<uint64_t> source, target;
  std::size_t sent = 0;    // accepted
  std::size_t posted = 0;  // receives

  Stream(int rank, std::size_t count) : from(rank), to(1 - rank), source(count), target(count) {
    for (std::size_t i = 0; i < count; ++i)
      source[i] = i * 2654435761u + static_cast<uint64_t>(from);
  }
  bool has_come(std::size_t i) const { return target[i] == source[i]; }
};

class Ahead : public testing::TestWithParam<Backend> {
 protected:
  static constexpr Lane kLane = 2;

  Transport& transport(int rank) { return *fleet_->transports[static_cast<std::size_t>(rank)]; }
  Recorder& sink(int rank) { return fleet_->sinks[static_cast<std::size_t>(rank)]; }

  Transfer transfer(int peer, std::size_t i, uint64_t& value, Piece& piece) {
    piece = {reinterpret_cast<std::byte*>(&value), sizeof value};
    return {.peer = peer, .lane = kLane, .sequence = i, .pieces = {&piece, 1}, .cookie = i + 1};
  }
  Status send(Stream& stream, std::size_t i) {
    Piece piece;
    return transport(stream.from).post_send(transfer(stream.to, i, stream.source[i], piece));
  }
  Status receive(Stream& stream, std::size_t i) {
    Piece piece;
    return transport(stream.to).post_recv(transfer(stream.from, i, stream.target[i], piece));
  }
  // Sends until the transport accepts no more. Returns whether the transport accepted any transfer.
  bool send_some(Stream& stream) {
    const std::size_t before = stream.sent;
    while (stream.sent < stream.source.size() && send(stream, stream.sent).ok()) ++stream.sent;
    return stream.sent > before;
  }
  // Sends until the transport has accepted nothing for kIdlePolls polls.
  void send_until_it_waits(std::vector<Stream>& streams) {
    for (int idle = 0; idle < kIdlePolls; ++idle) {
      for (Stream& stream : streams) {
        if (send_some(stream)) idle = 0;
      }
      fleet_->poll_all();
    }
  }
  void receive_all(std::vector<Stream>& streams) {
    const auto is_done = [&] {
      bool all = true;
      for (Stream& stream : streams) {
        send_some(stream);
        while (stream.posted < stream.sent && receive(stream, stream.posted).ok()) ++stream.posted;
        all = all && sink(stream.to).received_cookies.size() == stream.source.size() &&
              sink(stream.from).sent_cookies.size() == stream.source.size();
      }
      return all;
    };
    ASSERT_TRUE(fleet_->poll_until(is_done, std::chrono::seconds(600)));
  }
  void expect_connected() {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(sink(rank).failures.empty())
          << sink(rank).failures.begin()->second.front() << " at rank " << rank;
    }
  }

  std::unique_ptr<Fleet> fleet_;
};

TEST_P(Ahead, waits_for_a_receiver_that_posts_nothing_and_loses_nothing) {
  fleet_ = GetParam().make(2, kNeverSilent);
  std::vector<Stream> streams;
  for (int rank : {0, 1}) streams.emplace_back(rank, transfers());
  const std::size_t heap_before = mallinfo2().uordblks;
  send_until_it_waits(streams);
  const std::size_t heap = mallinfo2().uordblks - heap_before;
  expect_connected();
  const bool is_simulated = GetParam().name.starts_with("sim");
  for (const Stream& stream : streams) {
    const std::size_t most = kTransfersMax + eager_bytes_of_peer(2) / kEagerTransferCost;
    EXPECT_TRUE(is_simulated || stream.sent <= most) << stream.sent << " from " << stream.from;
    EXPECT_TRUE(sink(stream.to).received_cookies.empty());
  }
  EXPECT_TRUE(is_simulated || kSanitized || heap <= kHeapBytesMax) << heap << " bytes";

  // A control message still passes in both directions.
  const std::vector<std::byte> word(100, std::byte{7});
  for (int rank : {0, 1})
    fleet_->offer([&] { return transport(rank).post_control(1 - rank, word); });
  EXPECT_TRUE(fleet_->poll_until(
      [&] { return sink(0).messages[1].size() == 1 && sink(1).messages[0].size() == 1; }));

  // The last accepted transfer does not wait for the transfers before it.
  for (Stream& stream : streams) {
    const std::size_t last = stream.sent - 1;
    fleet_->offer([&] { return receive(stream, last); });
    EXPECT_TRUE(fleet_->poll_until([&] { return stream.has_come(last); }))
        << "transfer " << last << " from rank " << stream.from;
  }
  for (Stream& stream : streams) {
    const std::size_t last = stream.sent - 1;
    send_some(stream);
    for (; stream.posted < last; ++stream.posted) {
      fleet_->offer([&] { return receive(stream, stream.posted); });
    }
    ++stream.posted;
  }
  receive_all(streams);
  expect_connected();
  for (const Stream& stream : streams) EXPECT_EQ(stream.target, stream.source);
}

TEST_P(Ahead, stream_beside_a_receiver_that_posts_now_and_then_arrives) {
  fleet_ = GetParam().make(2, kNeverSilent);
  std::vector<Stream> streams;
  for (int rank : {0, 1}) streams.emplace_back(rank, 20'000);
  std::mt19937_64 random(20261126);
  while (streams[0].posted < 20'000 || streams[1].posted < 20'000) {
    for (Stream& stream : streams) {
      send_some(stream);
      std::size_t some = random() % 4 == 0 ? random() % 5000 : 0;
      for (; some > 0 && stream.posted < stream.source.size(); --some) {
        if (!receive(stream, stream.posted).ok()) break;
        ++stream.posted;
      }
    }
    fleet_->poll_all();
  }
  receive_all(streams);
  expect_connected();
  for (const Stream& stream : streams) EXPECT_EQ(stream.target, stream.source);
}

INSTANTIATE_TEST_SUITE_P(Backends, Ahead, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
