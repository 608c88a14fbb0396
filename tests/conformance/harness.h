// Several ranks in one process, over any transport. A backend is one row in backends().
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/world.h"
#include "memory/pool.h"
#include "transport/transport.h"

namespace rdmacoll::conformance {

// Most tests are not about silence. A heartbeat must not repair a lost wake-up.
inline constexpr Nanoseconds kNeverSilent = 3600 * kSecond;

// Notes all events, and expects that no event comes twice.
struct Recorder final : Sink {
  struct Seen {
    std::vector<RemotePiece> pieces;
    const RemoteReader* reader = nullptr;
  };
  std::set<int> peers;
  std::set<uint64_t> sent_cookies;
  std::set<uint64_t> received_cookies;
  std::map<uint64_t, Seen> views;
  std::map<int, std::vector<std::vector<std::byte>>> messages;
  std::map<int, std::vector<std::string>> failures;
  GpuWork* work = nullptr;
  std::function<void(uint64_t)> on_sent = [](uint64_t) {};
  std::function<void(uint64_t)> on_received = [](uint64_t) {};

  void connected(int peer) override { EXPECT_TRUE(peers.insert(peer).second) << peer; }
  void sent(uint64_t cookie) override {
    EXPECT_TRUE(sent_cookies.insert(cookie).second) << cookie;
    on_sent(cookie);
  }
  void received(uint64_t cookie) override {
    EXPECT_TRUE(received_cookies.insert(cookie).second) << cookie;
    on_received(cookie);
  }
  void viewed(uint64_t cookie, const View& view) override {
    Seen seen{{view.pieces.begin(), view.pieces.end()}, view.reader};
    EXPECT_TRUE(views.emplace(cookie, std::move(seen)).second) << cookie;
  }
  void control(int peer, std::span<const std::byte> message) override {
    messages[peer].emplace_back(message.begin(), message.end());
  }
  void peer_failed(int peer, const std::string& cause) override { failures[peer].push_back(cause); }
  GpuWork* gpu_work() override { return work; }
};

// A world in one process. Destroying one transport is the death of that rank.
struct Fleet {
  virtual ~Fleet() = default;
  // Advances the simulator between polls. Real transports need nothing.
  virtual void step() {}

  std::vector<std::unique_ptr<MemoryPool>> pools;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Recorder> sinks;

  int size() const { return static_cast<int>(transports.size()); }
  bool poll_all();
  // Polls all transports until `done`. Returns false after `limit` of real time.
  bool poll_until(const std::function<bool()>& done,
                  std::chrono::seconds limit = std::chrono::seconds(60));
  // Repeats the call while it returns busy, as an engine does.
  void offer(const std::function<Status()>& call);
  bool all_connected() const;
};

// The pool and transport of a rank that is a process of its own, for tests that kill a process.
struct Endpoint {
  std::unique_ptr<MemoryPool> pool;
  std::unique_ptr<Transport> transport;
};

using Sockets = std::vector<Fd>;

struct Backend {
  std::string name;
  bool views = false;
  // A connected fleet in full mesh.
  std::function<std::unique_ptr<Fleet>(int ranks, Nanoseconds peer_timeout)> make;
  // Empty if ranks cannot be processes. `sockets` returns connected sockets, mostly one at each
  // end. `make_endpoint` makes an endpoint from the sockets of one end. The world has two ranks.
  // Rank 0 dials.
  std::function<std::pair<Sockets, Sockets>()> sockets;
  std::function<Endpoint(int rank, Sockets sockets, Nanoseconds peer_timeout)> make_endpoint;
};
std::ostream& operator<<(std::ostream& out, const Backend& backend);

std::vector<Backend> backends();
std::vector<Backend> backends_with_views();
std::vector<Backend> backends_with_processes();
std::string test_name(const testing::TestParamInfo<Backend>& info);

World world_of(int ranks, int rank);
std::unique_ptr<MemoryPool> make_pool();
const Clock& steady_clock();

// Fills memory with bytes that depend on `seed`, so that no two transfers look alike.
void paint(std::span<std::byte> memory, uint64_t seed);
bool is_painted(std::span<const std::byte> memory, uint64_t seed);

// Memory in one or many pieces, inside or outside the pool, cut at random.
class Buffer {
 public:
  Buffer(MemoryPool* pool, std::size_t bytes, std::size_t pieces_max, std::mt19937_64& random);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::span<const Piece> pieces() const { return pieces_; }
  std::size_t bytes() const { return bytes_; }
  void paint(uint64_t seed);
  bool is_painted(uint64_t seed) const;

 private:
  MemoryPool* pool_;
  std::size_t bytes_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<std::byte>> own_;
};

std::vector<std::byte> bytes_of_view(const Recorder::Seen& seen);
std::size_t random_size(std::mt19937_64& random, std::size_t max);

}  // namespace rdmacoll::conformance
