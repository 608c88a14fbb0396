// A world in one process: each rank is a thread with a Session of its own, over real sockets and
// real shared memory.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/device_requests.h"
#include "api/session.h"
#include "base/text.h"
#include "operation/operation.h"

namespace rdmacoll {

class LocalWorld {
 public:
  // Fails the test when it does not start. `machines`: each rank's own machine, which counts as a
  // node of its own. Empty: this machine has all ranks.
  LocalWorld(int ranks, const std::string& settings,
             const std::vector<SessionMachine>& machines = {})
      : sessions_(ranks) {
    std::vector<std::string> cards(ranks);
    std::vector<int> leaders(ranks);
    const std::vector<std::byte> secret(32, std::byte{7});
    each([&](int rank) {
      const Status status = Session::open(rank, ranks, "test", secret, settings, sessions_[rank],
                                          machines.empty() ? SessionMachine() : machines.at(rank));
      ASSERT_TRUE(status.ok()) << status.message();
      cards[rank] = sessions_[rank]->card();
    });
    each([&](int rank) {
      const Status status = sessions_[rank]->probe_node(cards, leaders[rank]);
      ASSERT_TRUE(status.ok()) << status.message();
      if (!machines.empty()) leaders[rank] = rank;
    });
    // One rank is early; it comes back, and goes on where it was.
    if (ranks > 1) {
      EXPECT_TRUE(sessions_[0]->start(leaders, kMillisecond).is_busy());
    }
    each([&](int rank) {
      Status status = Status::busy();
      while (status.is_busy()) status = sessions_[rank]->start(leaders, kMillisecond);
      ASSERT_TRUE(status.ok()) << status.message();
    });
  }
  ~LocalWorld() { close(); }

  int size() const { return static_cast<int>(sessions_.size()); }
  Session& rank(int rank) { return *sessions_[rank]; }
  void each(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }
  void close() {
    each([&](int rank) { sessions_[rank]->close(""); });
  }

 private:
  std::vector<std::unique_ptr<Session>> sessions_;
};

// A request over `values`, in place.
template <typename T>
Request in_place(Kind kind, Dtype dtype, std::vector<T>& values, const std::string& name = "") {
  Request request;
  request.kind = kind;
  request.dtype = dtype;
  request.name = name;
  auto* memory = reinterpret_cast<std::byte*>(values.data());
  request.tensors = {{memory, memory, {static_cast<int64_t>(values.size())}, name}};
  return request;
}

// Submits and waits; the operation's own status. The work of a GPU comes before later work of the
// request's stream.
inline Status run(Session& session, Request request) {
  const auto operation = std::make_shared<Operation>(std::move(request));
  const Status accepted = session.driver().submit_and_wait(operation, 60 * kSecond);
  if (!accepted.ok()) return accepted;
  if (!operation->done()) return {Code::stalled, "not done within a minute: " + session.state()};
  return follow_end(*operation);
}

}  // namespace rdmacoll
