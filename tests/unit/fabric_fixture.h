// All ranks of a small world as fabrics of one process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/fabric.h"
#include "bootstrap/transports.h"
#include "transport/rdma/provider.h"

namespace rdmacoll::fabric_test {

struct Events final : Sink {
  std::multiset<int> peers;
  std::multiset<uint64_t> sent_cookies, received_cookies;
  std::vector<std::pair<int, std::string>> messages;
  std::map<int, std::vector<std::string>> failures;

  void connected(int peer) override { peers.insert(peer); }
  void sent(uint64_t cookie) override { sent_cookies.insert(cookie); }
  void received(uint64_t cookie) override { received_cookies.insert(cookie); }
  void viewed(uint64_t, const View&) override {}
  void control(int peer, std::span<const std::byte> message) override {
    messages.emplace_back(
        peer, std::string(reinterpret_cast<const char*>(message.data()), message.size()));
  }
  void peer_failed(int peer, const std::string& cause) override { failures[peer].push_back(cause); }
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline std::vector<std::byte> secret_of(std::string_view text) {
  return {bytes_of(text).begin(), bytes_of(text).end()};
}

using Edit = std::function<void(FabricOptions&)>;

// All ranks of a small world in this process, stepped in turn.
struct Cluster {
  SteadyClock clock;
  std::vector<std::unique_ptr<MemoryPool>> pools;
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::vector<Events> events;
  std::vector<std::string> cards;

  explicit Cluster(int size, const Edit& edit = {}) : events(size) {
    for (int rank = 0; rank < size; ++rank) {
      FabricOptions options{.rank = rank,
                            .size = size,
                            .job = "fabric test",
                            .secret = secret_of("sixteen bytes of secret"),
                            .epoch = 3,
                            .config = {.start_timeout_s = 30}};
      if (edit) edit(options);
      pools.emplace_back();
      EXPECT_TRUE(MemoryPool::create(64 << 20, pools.back()).ok());
      fabrics.emplace_back();
      const Status status = Fabric::open(std::move(options), *pools.back(), clock, fabrics.back());
      EXPECT_TRUE(status.ok()) << status.message();
      cards.push_back(fabrics.back()->card());
    }
  }

  int size() const { return static_cast<int>(fabrics.size()); }

  // `leaders` empty: as probed.
  Status begin(std::vector<int> leaders = {}) {
    std::vector<int> probed(fabrics.size());
    for (int rank = 0; rank < size(); ++rank) {
      RC_RETURN_IF_ERROR(fabrics[rank]->probe_node(cards, probed[rank]));
    }
    if (leaders.empty()) leaders = probed;
    for (auto& fabric : fabrics) {
      World world;
      RC_RETURN_IF_ERROR(fabric->make_world(leaders, world));
      RC_RETURN_IF_ERROR(fabric->begin(world));
    }
    return {};
  }

  void connect_all() {
    for (int rank = 0; rank < size(); ++rank) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank) fabrics[rank]->connect(peer);
      }
    }
  }

  bool step() {
    bool moved = false;
    for (int rank = 0; rank < size(); ++rank) {
      if (fabrics[rank]) moved |= fabrics[rank]->poll(events[rank]);
    }
    return moved;
  }

  // Fails, rather than hangs, when `condition` stays false for far longer than it should.
  [[nodiscard]] bool until(const std::function<bool()>& condition, double seconds = 60) {
    const Nanoseconds end = clock.now() + static_cast<Nanoseconds>(seconds * kSecond);
    while (!condition()) {
      if (clock.now() > end) return false;
      step();
    }
    return true;
  }

  [[nodiscard]] bool all_meet() {
    return until([&] {
      return std::all_of(events.begin(), events.end(), [&](const Events& one) {
        return static_cast<int>(one.peers.size()) == size() - 1;
      });
    });
  }
};

// The table of transports, with other devices under RDMA.
inline std::vector<TransportRow> transports_over(
    rdma::Verbs& verbs, std::optional<rdma::MemoryLimit> limit = std::nullopt) {
  std::vector<TransportRow> rows = transport_table();
  for (TransportRow& row : rows) {
    if (row.name != "rdma") continue;
    row.make = [&verbs, limit] { return std::make_unique<RdmaProvider>(&verbs, limit); };
  }
  return rows;
}

inline Edit only(std::vector<std::string> transports) {
  return [=](FabricOptions& options) { options.config.transports = transports; };
}

}  // namespace rdmacoll::fabric_test
