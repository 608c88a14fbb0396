// Peers report a dead rank exactly once, with a cause, during any traffic.
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

constexpr uint64_t kSeeds = 20'250'400;

class Death : public testing::TestWithParam<Backend> {
 protected:
  static bool is_rdma() {
    const std::string& name = GetParam().name;
    return name.starts_with("rdma") || name.starts_with("verbs");
  }
  void make(int ranks) { fleet_ = GetParam().make(ranks, kNeverSilent); }
  Transport& transport(int rank) { return *fleet_->transports[static_cast<std::size_t>(rank)]; }
  Recorder& sink(int rank) { return fleet_->sinks[static_cast<std::size_t>(rank)]; }

  void expect_reported_once(int survivor, int dead) {
    auto& causes = sink(survivor).failures[dead];
    EXPECT_TRUE(fleet_->poll_until([&] { return !causes.empty(); }));
    for (int i = 0; i < 2000; ++i) fleet_->poll_all();
    ASSERT_EQ(causes.size(), 1u);
    EXPECT_FALSE(causes[0].empty());
    EXPECT_FALSE(transport(survivor).is_connected(dead));
  }

  // Posts sends, receives and control messages with every peer. It does not wait for their end.
  void start_traffic(int rank, uint64_t rounds, std::mt19937_64& random) {
    for (uint64_t i = 0; i < rounds; ++i) {
      for (int peer = 0; peer < fleet_->size(); ++peer) {
        if (peer == rank || fleet_->transports[static_cast<std::size_t>(peer)] == nullptr) continue;
        for (const bool is_send : {true, false}) {
          buffers_.push_back(std::make_unique<Buffer>(nullptr, random() % 90'000, 3, random));
          const Transfer transfer{.peer = peer,
                                  .sequence = 2 * i + is_send + (1000 * runs_),
                                  .pieces = buffers_.back()->pieces(),
                                  .cookie = ++cookie_};
          if (is_send) (void)transport(rank).post_send(transfer);
          if (!is_send) (void)transport(rank).post_recv(transfer);
        }
        const std::vector<std::byte> word(100);
        (void)transport(rank).post_control(peer, word);
        if (transport(rank).reach(peer).views) {
          (void)transport(rank).await(peer, 1, 1000 * runs_ + i, ++cookie_);
        }
      }
    }
    ++runs_;
  }

  // Expects that a transfer between the two survivors arrives.
  void expect_works(int from, int to) {
    std::mt19937_64 random(kSeeds);
    Buffer source(nullptr, 70'000, 3, random);
    Buffer target(nullptr, 70'000, 3, random);
    source.paint(5);
    const uint64_t cookie = ++cookie_;
    Transfer transfer{
        .peer = to, .lane = 200, .sequence = cookie, .pieces = source.pieces(), .cookie = cookie};
    fleet_->offer([&] { return transport(from).post_send(transfer); });
    transfer.peer = from;
    transfer.pieces = target.pieces();
    fleet_->offer([&] { return transport(to).post_recv(transfer); });
    EXPECT_TRUE(fleet_->poll_until([&] {
      return sink(to).received_cookies.contains(cookie) && sink(from).sent_cookies.contains(cookie);
    }));
    EXPECT_TRUE(target.is_painted(5));
  }

  std::unique_ptr<Fleet> fleet_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  uint64_t cookie_ = 0;
  uint64_t runs_ = 0;
};

TEST_P(Death, of_an_idle_rank_is_reported_once) {
  make(3);
  fleet_->transports[1].reset();
  expect_reported_once(0, 1);
  expect_reported_once(2, 1);
  expect_works(0, 2);
  EXPECT_EQ(sink(0).failures.size(), 1u);
}

TEST_P(Death, of_a_busy_rank_is_reported_once_and_its_memory_is_left_alone) {
  // Over RDMA, a transport keeps unreceived data of a dead peer for a while, so there are fewer
  // seeds.
  const uint64_t seeds = is_rdma() ? 4 : 12;
  for (uint64_t seed = kSeeds; seed < kSeeds + seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    make(3);
    for (int rank = 0; rank < 3; ++rank) start_traffic(rank, 30, random);
    for (uint64_t i = random() % 20; i > 0; --i) fleet_->poll_all();
    fleet_->transports[1].reset();
    fleet_->pools[1].reset();
    expect_reported_once(0, 1);
    expect_reported_once(2, 1);
    EXPECT_EQ(sink(0).failures.size(), 1u);
    expect_works(2, 0);
    fleet_.reset();
    buffers_.clear();
  }
}

// A leaving rank flushes. It need not wait until its peers have polled.
TEST_P(Death, after_a_flush_does_not_take_back_what_was_sent) {
  // The transfers are small, so they go without a grant. With other transports a send waits for the
  // receiver, so the end of the peer cannot overtake it.
  if (!is_rdma()) return;
  for (const bool is_posted : {true, false}) {
    make(2);
    std::mt19937_64 random(kSeeds);
    std::vector<std::unique_ptr<Buffer>> targets;
    const auto post_receives = [&] {
      for (uint64_t i = 0; i < 20; ++i) {
        targets.push_back(std::make_unique<Buffer>(nullptr, 400, 1, random));
        EXPECT_TRUE(transport(0)
                        .post_recv({.peer = 1,
                                    .sequence = i,
                                    .pieces = targets.back()->pieces(),
                                    .cookie = 100 + i})
                        .ok());
      }
    };
    if (is_posted) {
      post_receives();
      for (int i = 0; i < 1000; ++i) fleet_->poll_all();  // grants may go out
    }
    Buffer source(nullptr, 400, 1, random);
    source.paint(7);
    const auto turn_of_1 = [&] {
      fleet_->step();
      transport(1).poll(sink(1));
    };
    for (uint64_t i = 0; i < 20; ++i) {
      const auto post = [&] {
        return transport(1).post_send(
            {.peer = 0, .sequence = i, .pieces = source.pieces(), .cookie = 200 + i});
      };
      while (!post().ok()) turn_of_1();
    }
    while (sink(1).sent_cookies.size() < 20 || !transport(1).flushed()) turn_of_1();
    fleet_->transports[1].reset();
    if (!is_posted) {
      for (int i = 0; i < 100; ++i) fleet_->poll_all();
      post_receives();
    }
    expect_reported_once(0, 1);
    EXPECT_EQ(sink(0).received_cookies.size(), 20u);
    for (const auto& target : targets) EXPECT_TRUE(target->is_painted(7));
    fleet_.reset();
  }
}

TEST_P(Death, leaves_calls_that_name_the_dead_without_effect) {
  make(2);
  fleet_->transports[1].reset();
  expect_reported_once(0, 1);
  std::byte byte{};
  const Piece piece{&byte, 1};
  const Transfer transfer{.peer = 1, .sequence = 1, .pieces = {&piece, 1}, .cookie = 9};
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(transport(0).post_send(transfer).ok());
    EXPECT_TRUE(transport(0).post_recv(transfer).ok());
    EXPECT_TRUE(transport(0).post_control(1, {&byte, 1}).ok());
    if (!GetParam().views) continue;
    EXPECT_TRUE(transport(0).publish(transfer).ok());
    EXPECT_TRUE(transport(0).await(1, 0, 1, 9).ok());
    EXPECT_TRUE(transport(0).release(1, 0, 1).ok());
  }
  for (int i = 0; i < 1000; ++i) fleet_->poll_all();
  EXPECT_TRUE(sink(0).sent_cookies.empty());
  EXPECT_TRUE(sink(0).received_cookies.empty());
  EXPECT_TRUE(sink(0).views.empty());
  EXPECT_EQ(sink(0).failures[1].size(), 1u);
  EXPECT_TRUE(transport(0).flushed());
}

TEST_P(Death, that_we_declared_is_not_reported_to_us_but_to_the_other) {
  std::mt19937_64 random(kSeeds + 1);
  for (const uint64_t traffic : {0, 20}) {
    make(3);
    for (int rank = 0; rank < 3; ++rank) start_traffic(rank, traffic, random);
    transport(0).fail(1);
    EXPECT_FALSE(transport(0).is_connected(1));
    expect_reported_once(1, 0);
    EXPECT_TRUE(sink(0).failures.empty());
    EXPECT_TRUE(sink(2).failures.empty());
    expect_works(0, 2);
    expect_works(1, 2);
    transport(0).fail(1);  // twice is once
    fleet_.reset();
    buffers_.clear();
  }
}

TEST_P(Death, leaves_no_descriptors_and_no_mappings) {
  const auto count_descriptors = [] {
    int count = 0;
    DIR* folder = ::opendir("/proc/self/fd");
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
    return count;
  };
  const auto count_mappings = [] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("memfd") != line.npos;
    return count;
  };
  std::mt19937_64 random(kSeeds + 2);
  int descriptors = 0;
  int mappings = 0;
  for (int round = 0; round < 200; ++round) {
    make(3);
    start_traffic(0, 3, random);
    fleet_->poll_all();
    if (round % 3 == 0) fleet_->transports[1].reset();
    if (round % 3 == 1) transport(2).fail(0);
    fleet_->poll_all();
    fleet_.reset();
    buffers_.clear();
    if (round == 0) descriptors = count_descriptors();
    if (round == 0) mappings = count_mappings();
  }
  EXPECT_EQ(count_descriptors(), descriptors);
  EXPECT_EQ(count_mappings(), mappings);
}

INSTANTIATE_TEST_SUITE_P(over, Death, testing::ValuesIn(backends()), test_name);

// ---- of a process -----------------------------------------------------------------------------

class ProcessDeath : public testing::TestWithParam<Backend> {
 protected:
  ~ProcessDeath() override {
    if (child_ > 0) finish_child();
  }

  // Rank 1 is a process of its own that polls, and sends as fast as it can when `busy`.
  void start(bool busy, Nanoseconds peer_timeout) {
    auto [mine, theirs] = GetParam().sockets();
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      mine.clear();
      be_child(std::move(theirs), busy, peer_timeout);
    }
    theirs.clear();
    endpoint_ = GetParam().make_endpoint(0, std::move(mine), peer_timeout);
    poll_until([&] { return !sink_.peers.empty(); });
    ASSERT_TRUE(sink_.peers.contains(1));
  }

  [[noreturn]] static void be_child(Sockets sockets, bool busy, Nanoseconds peer_timeout) {
    ::alarm(60);  // ends an orphan
    Endpoint endpoint = GetParam().make_endpoint(1, std::move(sockets), peer_timeout);
    Recorder sink;
    std::vector<std::byte> memory(300'000);
    const Piece piece{memory.data(), memory.size()};
    const Piece pooled{endpoint.pool->allocate(1000), 1000};
    uint64_t i = 0;
    while (true) {
      endpoint.transport->poll(sink);
      if (!busy || !endpoint.transport->is_connected(0)) continue;
      const Transfer transfer{.peer = 0, .sequence = i, .pieces = {&piece, 1}, .cookie = i};
      if (i < 1000) (void)endpoint.transport->post_send(transfer);
      (void)endpoint.transport->post_control(0, std::span(memory).first(2000));
      if (i < 1000 && endpoint.transport->reach(0).views) {
        const Transfer view{
            .peer = 0, .sequence = i, .pieces = {&pooled, 1}, .cookie = 1'000'000 + i};
        (void)endpoint.transport->publish(view);
      }
      ++i;
    }
  }

  bool poll_until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      endpoint_.transport->poll(sink_);
    }
    return true;
  }

  void finish_child() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

  void expect_reported_once() {
    EXPECT_TRUE(poll_until([&] { return !sink_.failures[1].empty(); }));
    for (int i = 0; i < 5000; ++i) endpoint_.transport->poll(sink_);
    ASSERT_EQ(sink_.failures[1].size(), 1u);
    EXPECT_FALSE(sink_.failures[1][0].empty());
  }

  pid_t child_ = 0;
  Endpoint endpoint_;
  Recorder sink_;
};

TEST_P(ProcessDeath, by_SIGKILL_while_idle_is_reported_within_five_seconds) {
  start(false, kNeverSilent);
  for (int i = 0; i < 1000; ++i) endpoint_.transport->poll(sink_);
  const auto killed = std::chrono::steady_clock::now();
  finish_child();
  expect_reported_once();
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(5));
}

TEST_P(ProcessDeath, by_SIGKILL_while_busy_is_reported_once) {
  for (const uint64_t messages : {1, 100, 2000}) {
    sink_ = {};
    start(true, kNeverSilent);
    std::vector<std::vector<std::byte>> targets(40, std::vector<std::byte>(300'000));
    for (uint64_t i = 0; i < targets.size(); ++i) {
      const Piece piece{targets[i].data(), targets[i].size()};
      const Transfer transfer{.peer = 1, .sequence = i, .pieces = {&piece, 1}, .cookie = i};
      poll_until([&] { return !endpoint_.transport->post_recv(transfer).is_busy(); });
      if (endpoint_.transport->reach(1).views) {
        poll_until([&] { return !endpoint_.transport->await(1, 0, i, 1'000 + i).is_busy(); });
      }
    }
    EXPECT_TRUE(poll_until([&] { return sink_.messages[1].size() >= messages; }));
    finish_child();
    expect_reported_once();
    // The views of the dead peer's pool are still readable.
    for (const auto& [cookie, seen] : sink_.views) {
      ASSERT_EQ(seen.reader, nullptr);
      EXPECT_EQ(bytes_of_view(seen).size(), 1000u);
    }
    endpoint_.transport.reset();  // before its pool
    endpoint_ = {};
  }
}

TEST_P(ProcessDeath, wakes_a_sleeper) {
  start(false, kNeverSilent);
  while (endpoint_.transport->poll(sink_) || !endpoint_.transport->arm()) {
  }
  finish_child();
  pollfd handle{.fd = endpoint_.transport->wait_handle(), .events = POLLIN};
  EXPECT_EQ(::poll(&handle, 1, 20'000), 1);
  expect_reported_once();
}

TEST_P(ProcessDeath, by_silence_is_told_within_five_times_the_promise) {
  constexpr Nanoseconds kPromise = 400 * kMillisecond;
  start(false, kPromise);
  // A quiet peer is not silent: it sends heartbeats.
  const auto quiet_until =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(3 * kPromise);
  poll_until([&] { return std::chrono::steady_clock::now() > quiet_until; });
  EXPECT_TRUE(sink_.failures.empty());
  const auto stopped = std::chrono::steady_clock::now();
  ::kill(child_, SIGSTOP);
  expect_reported_once();
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, std::chrono::nanoseconds(5 * kPromise));
  EXPECT_NE(sink_.failures[1][0].find("silent"), std::string::npos) << sink_.failures[1][0];
}

TEST_P(ProcessDeath, is_not_reported_while_both_sleep_between_heartbeats) {
  constexpr Nanoseconds kPromise = 400 * kMillisecond;
  start(false, kPromise);
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(4 * kPromise);
  while (std::chrono::steady_clock::now() < end) {
    if (endpoint_.transport->poll(sink_) || !endpoint_.transport->arm()) continue;
    const Nanoseconds rest = endpoint_.transport->next_deadline() - steady_clock().now();
    pollfd handle{.fd = endpoint_.transport->wait_handle(), .events = POLLIN};
    ::poll(&handle, 1, static_cast<int>(std::max<Nanoseconds>(rest / kMillisecond + 1, 0)));
  }
  EXPECT_TRUE(sink_.failures.empty()) << sink_.failures.begin()->second[0];
}

INSTANTIATE_TEST_SUITE_P(over, ProcessDeath, testing::ValuesIn(backends_with_processes()),
                         test_name);

}  // namespace
}  // namespace rdmacoll::conformance
