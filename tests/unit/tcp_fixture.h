// TCP transports in one thread: a pair, or one transport with the test as its peer.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "transport/tcp/tcp_transport.h"

namespace rdmacoll::tcp_test {

struct ManualClock final : Clock {
  Nanoseconds time = kSecond;
  Nanoseconds now() const override { return time; }
};

struct Events final : Sink {
  std::vector<int> peers;
  std::vector<uint64_t> sent_cookies, received_cookies;
  std::vector<std::string> messages;
  std::map<int, std::vector<std::string>> failures;

  void connected(int peer) override { peers.push_back(peer); }
  void sent(uint64_t cookie) override { sent_cookies.push_back(cookie); }
  void received(uint64_t cookie) override { received_cookies.push_back(cookie); }
  void viewed(uint64_t, const View&) override { FAIL() << "tcp has no views"; }
  void control(int, std::span<const std::byte> message) override {
    messages.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  }
  void peer_failed(int peer, const std::string& cause) override { failures[peer].push_back(cause); }
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline std::pair<Fd, Fd> socket_pair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

inline World world_of(int size, int rank) {
  World world{.job = "test", .epoch = 7, .rank = rank};
  world.members.resize(size);
  return world;
}

inline constexpr Nanoseconds kPeerTimeout = 5 * kSecond;

// Two ranks, connected.
struct Pair {
  ManualClock clock;
  TcpOptions options;
  TcpTransport a{world_of(2, 0), clock, kPeerTimeout, options};
  TcpTransport b{world_of(2, 1), clock, kPeerTimeout, options};
  Events at_a, at_b;

  explicit Pair(TcpOptions own = {}) : options(own) {
    auto [left, right] = socket_pair();
    a.adopt(1, std::move(left));
    b.adopt(0, std::move(right));
    for (int stream = 1; stream < options.streams.count; ++stream) {
      std::tie(left, right) = socket_pair();
      a.adopt_stream(1, stream, std::move(left));
      b.adopt_stream(0, stream, std::move(right));
    }
    settle();
  }
  void settle() {
    while (a.poll(at_a) || b.poll(at_b)) {
    }
  }
};

// One rank with the test as its peer. The test writes single bytes and frames.
struct Puppet {
  ManualClock clock;
  TcpOptions options;
  TcpTransport transport{world_of(2, 0), clock, kPeerTimeout, options};
  Events events;
  Fd wire;
  Fd beside;  // the second of two streams

  explicit Puppet(TcpOptions own = {}) : options(own) {
    auto [left, right] = socket_pair();
    transport.adopt(1, std::move(left));
    wire = std::move(right);
    if (options.streams.count == 1) return;
    std::tie(left, right) = socket_pair();
    transport.adopt_stream(1, 1, std::move(left));
    beside = std::move(right);
  }
  static void write(const Fd& to, std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void write(std::span<const std::byte> bytes) { write(wire, bytes); }
  void write(const tcp::Header& header) { write(tcp::encode(header)); }
  void settle() {
    while (transport.poll(events)) {
    }
  }
  std::string cause() {
    settle();
    const auto& causes = events.failures[1];
    EXPECT_EQ(causes.size(), 1u);
    return causes.empty() ? "" : causes[0];
  }
};

inline std::vector<std::byte> random_bytes(std::size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace rdmacoll::tcp_test
