// Ranks with simulated devices and real sockets.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "conformance/harness.h"
#include "transport/rdma/rdma_transport.h"
#include "verbs_sim/fabric.h"
#include "verbs_sim/gpus.h"

namespace rdmacoll::conformance {

inline std::pair<Fd, Fd> unix_pair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

struct VerbsRank {
  std::vector<verbs_sim::AdapterModel> adapters;  // a rail each
  rdma::PeerOptions options{.peer_timeout = kNeverSilent};
  std::size_t pool_bytes = std::size_t{64} << 20;
  verbs_sim::SimGpus* gpus = nullptr;  // outlive the fleet
};

struct VerbsFleet final : Fleet {
  // `world_size`: larger than `ranks` if the world has further ranks without a transport here.
  VerbsFleet(const verbs_sim::FabricPolicy& policy, const std::vector<VerbsRank>& ranks,
             int world_size = 0)
      : fabric(policy) {
    world_size = std::max(world_size, static_cast<int>(ranks.size()));
    sinks.resize(ranks.size());
    for (const VerbsRank& rank : ranks) open(rank, world_size);
  }
  ~VerbsFleet() override { transports.clear(); }  // before their fabric

  void step() override {
    for (int i = 0; i < 200 && fabric.step(); ++i) {
    }
  }
  RdmaTransport& at(int rank) {
    return dynamic_cast<RdmaTransport&>(*transports[static_cast<std::size_t>(rank)]);
  }
  Recorder& sink(int rank) { return sinks[static_cast<std::size_t>(rank)]; }
  MemoryPool& pool(int rank) { return *pools[static_cast<std::size_t>(rank)]; }

  void meet_all() {
    for (int a = 0; a < size(); ++a) {
      for (int b = a + 1; b < size(); ++b) {
        auto [left, right] = unix_pair();
        at(a).adopt(b, std::move(left));
        at(b).adopt(a, std::move(right));
      }
    }
  }
  // Waits until `rank` hears of the end of `peer`, and returns the cause. Returns "" if nothing
  // comes.
  std::string failure(int rank, int peer) {
    auto& causes = sink(rank).failures[peer];
    poll_until([&] { return !causes.empty(); });
    return causes.empty() ? "" : causes.front();
  }

  verbs_sim::SimFabric fabric;

 private:
  void open(const VerbsRank& rank, int world_size) {
    std::vector<std::string> names;
    for (const auto& adapter : rank.adapters) names.push_back(adapter.facts.name);
    verbs_sim::SimVerbs& verbs = fabric.add_host(rank.adapters, rank.gpus);
    std::vector<rdma::DeviceFacts> present;
    EXPECT_TRUE(verbs.list(present).ok());
    std::vector<rdma::Rail> rails;
    Status status = rdma::choose_rails(present, {.devices = join(names, ",")}, rails);
    EXPECT_TRUE(status.ok()) << status.message();
    pools.emplace_back();
    status = MemoryPool::create(rank.pool_bytes, pools.back());
    EXPECT_TRUE(status.ok()) << status.message();
    std::unique_ptr<RdmaTransport> transport;
    status =
        RdmaTransport::open(world_of(world_size, static_cast<int>(transports.size())),
                            *pools.back(), steady_clock(), verbs, rails, rank.options, transport);
    EXPECT_TRUE(status.ok()) << status.message();
    if (rank.gpus != nullptr) transport->use_gpus({{std::shared_ptr<void>(), rank.gpus}});
    transports.push_back(std::move(transport));
  }
};

}  // namespace rdmacoll::conformance
