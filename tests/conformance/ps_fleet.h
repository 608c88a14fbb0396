// Workers and servers of an asynchronous parameter server in one process, which a test steps.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "conformance/harness.h"
#include "ps/client.h"
#include "ps/server.h"

namespace rdmacoll::conformance {

using ps::CallRef;
using ps::Client;
using ps::Server;
using ps::Tensor;
using ps::VariableSpec;

inline constexpr std::size_t kChunkBytes = 4096;
inline const std::string kSgd = "optimizer=sgd\ninitial_learning_rate=1\n";

inline VariableSpec floats(std::string name, std::vector<int64_t> dims, bool by_rows = false) {
  return {std::move(name), Dtype::float32, std::move(dims), by_rows};
}

// Workers are the first ranks, servers the last.
class PsFleet : public testing::TestWithParam<Backend> {
 protected:
  void open(int workers, int servers, std::optional<uint64_t> staleness = {},
            Nanoseconds peer_timeout = kNeverSilent) {
    fleet = GetParam().make(workers + servers, peer_timeout);
    std::vector<int> worker_ranks(static_cast<std::size_t>(workers));
    std::iota(worker_ranks.begin(), worker_ranks.end(), 0);
    std::vector<int> server_ranks(static_cast<std::size_t>(servers));
    std::iota(server_ranks.begin(), server_ranks.end(), workers);
    for (int rank = 0; rank < workers + servers; ++rank) {
      worlds.push_back(world_of(workers + servers, rank));
      worlds.back().servers = servers;
      for (int server = workers; server < workers + servers; ++server) {
        worlds.back().members[static_cast<std::size_t>(server)].stores = true;
      }
    }
    for (int rank = 0; rank < workers; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      clients.push_back(std::make_unique<Client>(
          *fleet->transports[i], worlds[i], *fleet->pools[i],
          ps::ClientOptions{server_ranks, chunk_bytes, staleness.has_value()}));
    }
    for (int rank = workers; rank < workers + servers; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      this->servers.push_back(std::make_unique<Server>(
          *fleet->transports[i], worlds[i], *fleet->pools[i],
          ps::ServerOptions{worker_ranks, chunk_bytes, staleness, rank - workers, servers}));
    }
  }

  // Lets each client and server make one turn. A client or server that has been reset is dead.
  void turn() {
    fleet->step();
    for (auto& client : clients) {
      if (client) client->turn();
    }
    for (auto& server : servers) {
      if (server) server->turn();
    }
  }
  bool run_until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      turn();
    }
    return true;
  }
  Status wait(const CallRef& call) {
    hangs = hangs || !run_until([&] { return call->is_done(); });  // once is enough
    return hangs ? Status(Code::failed, "hangs") : call->status;
  }
  void run(const CallRef& call) {
    const Status ended = wait(call);
    ASSERT_TRUE(ended.ok()) << ended.message();
  }

  // All workers declare the variables. The first worker gives the initial values.
  void begin(const std::vector<VariableSpec>& specs, std::vector<std::vector<float>> values,
             const std::string& rule = kSgd) {
    const std::unique_ptr<bool[]> decays(new bool[specs.size()]());
    for (auto& client : clients) {
      CallRef declared;
      const Status asked = client->declare(specs, {decays.get(), specs.size()}, rule, declared);
      ASSERT_TRUE(asked.ok()) << asked.message();
      run(declared);
      // A server that stores none of the variables needs no values.
      EXPECT_FALSE(declared->texts.empty());
      for (const std::string& text : declared->texts) EXPECT_EQ(text, "needs values");
    }
    std::vector<CallRef> waits;
    auto given = std::vector(clients.size(), values);
    for (std::size_t i = 1; i < clients.size(); ++i) {
      for (auto& one : given[i]) std::fill(one.begin(), one.end(), -1.F);
      waits.push_back(clients[i]->pull(tensors(given[i])));
    }
    for (int i = 0; i < 20; ++i) turn();
    for (const CallRef& one : waits) EXPECT_FALSE(one->is_done());
    run(clients[0]->init(tensors(values)));
    for (const CallRef& one : waits) run(one);
    for (const auto& one : given) EXPECT_EQ(one, values);
  }

  static std::vector<Tensor> tensors(std::vector<std::vector<float>>& values) {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < values.size(); ++i) {
      tensors.push_back({static_cast<uint32_t>(i), reinterpret_cast<std::byte*>(values[i].data())});
    }
    return tensors;
  }

  std::size_t chunk_bytes = kChunkBytes;
  bool hangs = false;
  std::unique_ptr<Fleet> fleet;
  std::vector<World> worlds;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<Server>> servers;
};

inline std::vector<float> counted(std::size_t count, float from) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), from);
  return values;
}

}  // namespace rdmacoll::conformance
