// Ranks as processes, as in the product: other address spaces, other pids.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

constexpr uint64_t kSeeds = 20'250'600;
constexpr uint64_t kRounds = 400;

class Processes : public testing::TestWithParam<Backend> {
 protected:
  static std::size_t bytes_of_round(uint64_t round) {
    return round % 40 == 0 ? 900'000 : round * 31;
  }

  // Both sides run this: they send, receive, publish and read views, and then check the bytes.
  static std::string run(Endpoint& endpoint, int rank) {
    Recorder sink;
    Transport& transport = *endpoint.transport;
    const int peer = 1 - rank;
    std::mt19937_64 random(kSeeds + static_cast<uint64_t>(rank));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(40);
    const auto poll_until = [&](const std::function<bool()>& done) {
      while (!done()) {
        if (std::chrono::steady_clock::now() > end) return false;
        transport.poll(sink);
      }
      return true;
    };
    if (!poll_until([&] { return sink.peers.contains(peer); })) return "not connected";
    const bool views = transport.reach(peer).views;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const std::size_t bytes = bytes_of_round(round);
      const uint64_t mine = 2 * round + static_cast<uint64_t>(rank);
      const uint64_t theirs = 2 * round + static_cast<uint64_t>(peer);
      const bool pooled = !transport.reach(peer).foreign_views || random() % 2 == 0;
      Buffer source(random() % 2 == 0 ? nullptr : endpoint.pool.get(), bytes, 4, random);
      Buffer shown(pooled ? endpoint.pool.get() : nullptr, bytes, 4, random);
      Buffer target(nullptr, bytes, 4, random);
      source.paint(mine);
      shown.paint(mine + 1'000'000);
      Transfer transfer{.peer = peer, .sequence = round, .pieces = source.pieces(), .cookie = mine};
      if (!transport.post_send(transfer).ok()) return "send";
      transfer.pieces = target.pieces();
      if (!transport.post_recv(transfer).ok()) return "receive";
      if (views) {
        transfer.pieces = shown.pieces();
        transfer.cookie = mine + 1'000'000;
        if (!transport.publish(transfer).ok()) return "publish";
        if (!transport.await(peer, 0, round, round).ok()) return "await";
        if (!poll_until([&] { return sink.views.contains(round); })) return "no view";
        if (!is_painted(bytes_of_view(sink.views.at(round)), theirs + 1'000'000))
          return "wrong view";
        if (!poll_until([&] { return transport.release(peer, 0, round).ok(); })) return "release";
      }
      const bool ended = poll_until([&] {
        return sink.sent_cookies.contains(mine) && sink.received_cookies.contains(mine) &&
               (!views || sink.sent_cookies.contains(mine + 1'000'000));
      });
      if (!ended) return "round " + std::to_string(round) + " did not end";
      if (!target.is_painted(theirs)) return "wrong bytes in round " + std::to_string(round);
    }
    // The peer may still need a message from this rank.
    const std::byte bye{};
    if (!transport.post_control(peer, {&bye, 1}).ok()) return "bye";
    if (!poll_until([&] { return !sink.messages[peer].empty() && transport.flushed(); }))
      return "no bye";
    return "";
  }
};

TEST_P(Processes, exchange_and_show_memory) {
  auto [mine, theirs] = GetParam().sockets();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    mine.clear();
    Endpoint endpoint = GetParam().make_endpoint(1, std::move(theirs), kNeverSilent);
    const std::string error = run(endpoint, 1);
    if (!error.empty()) fprintf(stderr, "rank 1: %s\n", error.c_str());
    ::_exit(error.empty() && !HasFailure() ? 0 : 1);
  }
  theirs.clear();
  Endpoint endpoint = GetParam().make_endpoint(0, std::move(mine), kNeverSilent);
  EXPECT_EQ(run(endpoint, 0), "") << "seed " << kSeeds;
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(over, Processes, testing::ValuesIn(backends_with_processes()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
