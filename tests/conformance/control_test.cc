#include <algorithm>

#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

constexpr uint64_t kSeeds = 20'250'200;

class Control : public testing::TestWithParam<Backend> {
 protected:
  void make(int ranks) { fleet_ = GetParam().make(ranks, kNeverSilent); }
  Transport& transport(int rank) { return *fleet_->transports[static_cast<std::size_t>(rank)]; }
  Recorder& sink(int rank) { return fleet_->sinks[static_cast<std::size_t>(rank)]; }

  std::vector<std::byte> message(std::size_t bytes, uint64_t seed) {
    std::vector<std::byte> memory(bytes);
    paint(memory, seed);
    return memory;
  }
  void post(int from, int to, const std::vector<std::byte>& message) {
    fleet_->offer([&] { return transport(from).post_control(to, message); });
  }

  std::unique_ptr<Fleet> fleet_;
};

TEST_P(Control, arrives_in_order_from_0_bytes_to_1_MiB) {
  make(2);
  std::vector<std::vector<std::byte>> sent[2];
  uint64_t seed = kSeeds;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{15 * 1024},
                                  std::size_t{17 * 1024}, kControlBytesMax, std::size_t{3},
                                  kControlBytesMax - 1, std::size_t{0}, std::size_t{70'000}}) {
    for (int from = 0; from < 2; ++from) {
      sent[from].push_back(message(bytes, ++seed));
      post(from, 1 - from, sent[from].back());
    }
  }
  for (int from = 0; from < 2; ++from) {
    auto& got = sink(1 - from).messages[from];
    EXPECT_TRUE(fleet_->poll_until([&] { return got.size() == sent[from].size(); }));
    EXPECT_EQ(got, sent[from]);
  }
}

TEST_P(Control, is_neither_lost_nor_doubled_while_data_is_in_flight) {
  make(3);
  std::mt19937_64 random(kSeeds + 50);
  std::map<std::pair<int, int>, std::vector<std::vector<std::byte>>> sent;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::size_t transfers = 0;
  for (uint64_t i = 0; i < 1500; ++i) {
    const int from = static_cast<int>(random() % 3);
    const int to = (from + 1 + static_cast<int>(random() % 2)) % 3;
    if (random() % 2 == 0) {
      const std::size_t bytes = random() % 40 == 0 ? random() % 200'000 : random() % 500;
      sent[{from, to}].push_back(message(bytes, i));
      post(from, to, sent[{from, to}].back());
      continue;
    }
    const std::size_t bytes = random() % 30'000;
    ++transfers;
    for (const bool is_send : {true, false}) {
      buffers.push_back(std::make_unique<Buffer>(nullptr, bytes, 3, random));
      const Transfer transfer{.peer = is_send ? to : from,
                              .sequence = i,
                              .pieces = buffers.back()->pieces(),
                              .cookie = i};
      fleet_->offer([&] {
        return is_send ? transport(from).post_send(transfer) : transport(to).post_recv(transfer);
      });
    }
  }
  const auto received = [&] {
    std::size_t count = 0;
    for (const Recorder& recorder : fleet_->sinks) count += recorder.received_cookies.size();
    return count;
  };
  EXPECT_TRUE(fleet_->poll_until([&] { return received() == transfers; })) << received();
  for (const auto& [pair, messages] : sent) {
    auto& got = sink(pair.second).messages[pair.first];
    const std::size_t count = messages.size();
    EXPECT_TRUE(fleet_->poll_until([&] { return got.size() >= count; })) << got.size();
    for (int i = 0; i < 100; ++i) fleet_->poll_all();
    EXPECT_EQ(got, messages) << pair.first << " to " << pair.second;
  }
}

TEST_P(Control, says_busy_when_nobody_reads_and_goes_on_when_somebody_does) {
  make(2);
  std::vector<std::vector<std::byte>> sent;
  // Rank 1 does not poll, so the transport runs out of room.
  bool busy = false;
  for (uint64_t i = 0; i < 2000 && !busy; ++i) {
    sent.push_back(message(30'000, i));
    const Status status = transport(0).post_control(1, sent.back());
    busy = status.is_busy();
    if (busy) sent.pop_back();
    ASSERT_TRUE(busy || status.ok());
    transport(0).poll(sink(0));
  }
  EXPECT_TRUE(busy);
  sent.push_back(message(5, 77));
  post(0, 1, sent.back());
  auto& got = sink(1).messages[0];
  EXPECT_TRUE(fleet_->poll_until([&] { return got.size() == sent.size(); }));
  EXPECT_EQ(got, sent);
}

TEST_P(Control, what_was_flushed_arrives_though_the_sender_ends) {
  make(2);
  std::vector<std::vector<std::byte>> sent;
  for (uint64_t i = 0; i < 40; ++i) {
    sent.push_back(message(i * 500, i));
    post(0, 1, sent.back());
  }
  EXPECT_TRUE(fleet_->poll_until([&] { return transport(0).flushed(); }));
  fleet_->transports[0].reset();
  EXPECT_TRUE(fleet_->poll_until([&] { return !sink(1).failures[0].empty(); }));
  EXPECT_EQ(sink(1).messages[0], sent);
  EXPECT_EQ(sink(1).failures[0].size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(over, Control, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
