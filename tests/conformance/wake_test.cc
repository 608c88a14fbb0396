// Looks for lost wake-ups, with real threads that sleep on the handle. The peer timeout is so long
// that no heartbeat can repair a lost wake-up.
#include <poll.h>

#include <atomic>
#include <thread>

#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

constexpr uint64_t kSeeds = 20'250'300;
constexpr int kLostAfterMs = 20'000;

class Wake : public testing::TestWithParam<Backend> {
 protected:
  static void pause(std::mt19937_64& random) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(random() % 15'000);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
  // Polls until `done` and sleeps whenever nothing happens, as an engine does.
  static bool sleep_until(Transport& transport, Sink& sink, const std::function<bool()>& done) {
    while (!done()) {
      if (transport.poll(sink)) continue;
      if (done()) return true;
      if (!transport.arm()) continue;
      pollfd handle{.fd = transport.wait_handle(), .events = POLLIN};
      if (::poll(&handle, 1, kLostAfterMs) == 0) return false;
    }
    return true;
  }
  // Returns whether a rank that goes to sleep now would wake up again.
  static bool is_wakeful(Transport& transport) {
    if (!transport.arm()) return true;
    return is_rung(transport);
  }
  static bool is_rung(Transport& transport) {
    pollfd handle{.fd = transport.wait_handle(), .events = POLLIN};
    return ::poll(&handle, 1, 2'000) == 1;
  }
  // Fills the path from rank 0 to rank 1, which does not poll.
  static void fill(Fleet& fleet) {
    const std::vector<std::byte> message(10'000);
    while (fleet.transports[0]->post_control(1, message).ok()) {
      fleet.transports[0]->poll(fleet.sinks[0]);
    }
    settle(fleet, 0);
  }
  static void settle(Fleet& fleet, std::size_t rank) {
    for (int quiet = 0; quiet < 100; ++quiet) {
      if (fleet.transports[rank]->poll(fleet.sinks[rank])) quiet = 0;
    }
  }
  // A transport does not promise a wake-up when all data has left, so this function does not sleep.
  static bool flush(Transport& transport, Sink& sink) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kLostAfterMs);
    while (!transport.flushed() && std::chrono::steady_clock::now() < end) transport.poll(sink);
    return transport.flushed();
  }
};

// Enters the window of the lost wake-up on purpose.
TEST_P(Wake, what_comes_between_the_last_poll_and_arm_is_not_slept_over) {
  auto fleet = GetParam().make(2, kNeverSilent);
  const std::byte word{1};
  for (const bool armed_before : {false, true, false, true}) {
    settle(*fleet, 0);
    settle(*fleet, 1);
    EXPECT_TRUE(!armed_before || fleet->transports[0]->arm());
    EXPECT_TRUE(fleet->transports[1]->post_control(0, {&word, 1}).ok());
    settle(*fleet, 1);
    EXPECT_TRUE(armed_before ? is_rung(*fleet->transports[0]) : is_wakeful(*fleet->transports[0]));
  }
}

TEST_P(Wake, room_that_appears_between_the_last_poll_and_arm_is_not_slept_over) {
  for (const bool armed_before : {false, true}) {
    auto fleet = GetParam().make(2, kNeverSilent);
    fill(*fleet);
    EXPECT_TRUE(!armed_before || fleet->transports[0]->arm());
    settle(*fleet, 1);
    EXPECT_TRUE(armed_before ? is_rung(*fleet->transports[0]) : is_wakeful(*fleet->transports[0]));
    // The freed room is usable.
    const std::size_t before = fleet->sinks[1].messages[0].size();
    fleet->offer([&] { return fleet->transports[0]->post_control(1, {}); });
    EXPECT_TRUE(fleet->poll_until([&] { return fleet->sinks[1].messages[0].size() > before; }));
  }
}

TEST_P(Wake, a_sleeper_is_woken_by_every_control_message) {
  constexpr std::size_t kRounds = 6000;
  auto fleet = GetParam().make(2, kNeverSilent);
  std::atomic<bool> lost = false;
  const auto run = [&](std::size_t rank) {
    std::mt19937_64 random(kSeeds + rank);
    Transport& transport = *fleet->transports[rank];
    Recorder& sink = fleet->sinks[rank];
    const int peer = 1 - static_cast<int>(rank);
    auto& got = sink.messages[peer];
    const std::byte word{1};
    for (std::size_t round = 0; round < kRounds && !lost; ++round) {
      if (rank == 1 && !sleep_until(transport, sink, [&] { return got.size() > round; })) {
        lost = true;
      }
      pause(random);
      EXPECT_TRUE(transport.post_control(peer, {&word, 1}).ok());
      if (rank == 0 && !sleep_until(transport, sink, [&] { return got.size() > round; })) {
        lost = true;
      }
    }
    EXPECT_TRUE(flush(transport, sink));
    EXPECT_FALSE(lost) << "rank " << rank << " slept on after " << got.size() << " messages";
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

TEST_P(Wake, sleepers_of_three_ranks_are_woken_by_each_other) {
  constexpr std::size_t kRounds = 1500;
  auto fleet = GetParam().make(3, kNeverSilent);
  std::atomic<bool> lost = false;
  const auto run = [&](std::size_t rank) {
    std::mt19937_64 random(kSeeds + 10 + rank);
    Transport& transport = *fleet->transports[rank];
    Recorder& sink = fleet->sinks[rank];
    const std::byte word{1};
    const auto all_have_said = [&](std::size_t count) {
      for (int peer = 0; peer < 3; ++peer) {
        if (peer != static_cast<int>(rank) && sink.messages[peer].size() < count) return false;
      }
      return true;
    };
    for (std::size_t round = 0; round < kRounds && !lost; ++round) {
      pause(random);
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == static_cast<int>(rank)) continue;
        EXPECT_TRUE(transport.post_control(peer, {&word, 1}).ok());
      }
      if (!sleep_until(transport, sink, [&] { return all_have_said(round + 1); })) lost = true;
    }
    EXPECT_TRUE(flush(transport, sink));
    EXPECT_FALSE(lost) << "rank " << rank;
  };
  std::thread second(run, 1);
  std::thread third(run, 2);
  run(0);
  second.join();
  third.join();
}

TEST_P(Wake, a_sleeper_on_a_full_queue_is_woken) {
  constexpr std::size_t kMessages = 20'000;
  auto fleet = GetParam().make(2, kNeverSilent);
  std::thread reader([&] {
    std::mt19937_64 random(kSeeds + 20);
    auto& got = fleet->sinks[1].messages[0];
    EXPECT_TRUE(sleep_until(*fleet->transports[1], fleet->sinks[1], [&] {
      if (random() % 16 == 0) pause(random);
      return got.size() == kMessages;
    })) << got.size();
  });
  Transport& transport = *fleet->transports[0];
  const std::vector<std::byte> message(900);
  bool lost = false;
  for (std::size_t sent = 0; sent < kMessages && !lost;) {
    const Status status = transport.post_control(1, message);
    if (status.ok()) {
      ++sent;
      continue;
    }
    ASSERT_TRUE(status.is_busy());
    // One turn of an engine: poll, arm, sleep.
    if (transport.poll(fleet->sinks[0]) || !transport.arm()) continue;
    pollfd handle{.fd = transport.wait_handle(), .events = POLLIN};
    lost = ::poll(&handle, 1, kLostAfterMs) == 0;
  }
  // Messages that are still on their way may need further polls of this rank.
  EXPECT_TRUE(flush(transport, fleet->sinks[0]));
  EXPECT_FALSE(lost);
  reader.join();
}

TEST_P(Wake, transfers_between_sleepers_end) {
  constexpr uint64_t kRounds = 1500;
  auto fleet = GetParam().make(2, kNeverSilent);
  const auto run = [&](std::size_t rank) {
    std::mt19937_64 random(kSeeds + 30 + rank);
    Transport& transport = *fleet->transports[rank];
    Recorder& sink = fleet->sinks[rank];
    const int peer = 1 - static_cast<int>(rank);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const std::size_t bytes = round % 50 == 0 ? 400'000 : round * 7;
      Buffer source(nullptr, bytes, 3, random);
      Buffer target(nullptr, bytes, 3, random);
      source.paint(round + rank * kRounds);
      const Transfer send{
          .peer = peer, .sequence = round, .pieces = source.pieces(), .cookie = round};
      Transfer receive = send;
      receive.pieces = target.pieces();
      // One outstanding exchange never meets a full queue.
      EXPECT_TRUE(transport.post_send(send).ok());
      pause(random);
      EXPECT_TRUE(transport.post_recv(receive).ok());
      ASSERT_TRUE(sleep_until(transport, sink,
                              [&] {
                                return sink.sent_cookies.contains(round) &&
                                       sink.received_cookies.contains(round);
                              }))
          << "rank " << rank << " round " << round;
      ASSERT_TRUE(target.is_painted(round + static_cast<std::size_t>(peer) * kRounds));
    }
    EXPECT_TRUE(flush(transport, sink));
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(over, Wake, testing::ValuesIn(backends_with_processes()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
