#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <sstream>

#include "base/text.h"
#include "conformance/verbs_fleet.h"
#include "transport/rdma/rdma_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace rdmacoll::conformance {
namespace {

using MakePair = std::function<std::pair<Fd, Fd>()>;

std::pair<Sockets, Sockets> pairs(int count, const MakePair& make) {
  std::pair<Sockets, Sockets> both;
  for (int i = 0; i < count; ++i) {
    auto [left, right] = make();
    both.first.push_back(std::move(left));
    both.second.push_back(std::move(right));
  }
  return both;
}

std::pair<Fd, Fd> tcp_pair() {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), generic, bytes), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), generic, &bytes), 0);
  Fd dialer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(dialer.get(), generic, bytes), 0);
  Fd acceptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(acceptor);
  return {std::move(dialer), std::move(acceptor)};
}

using AdapterMaker = std::function<verbs_sim::AdapterModel(int host, int number)>;
using MakeTransport =
    std::function<std::unique_ptr<Transport>(const World&, MemoryPool&, Nanoseconds)>;
using Adopt = std::function<void(Transport&, int peer, Sockets sockets, bool dialer)>;

Backend real(std::string name, bool views, MakePair make_pair, MakeTransport make_transport,
             Adopt adopt, int streams = 1) {
  const auto sockets = [=] { return pairs(streams, make_pair); };
  Backend backend{.name = std::move(name), .views = views, .sockets = sockets};
  backend.make = [=](int ranks, Nanoseconds peer_timeout) {
    auto fleet = std::make_unique<Fleet>();
    fleet->sinks.resize(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      fleet->pools.push_back(make_pool());
      fleet->transports.push_back(
          make_transport(world_of(ranks, rank), *fleet->pools.back(), peer_timeout));
    }
    for (int a = 0; a < ranks; ++a) {
      for (int b = a + 1; b < ranks; ++b) {
        auto [left, right] = sockets();
        adopt(*fleet->transports[static_cast<std::size_t>(a)], b, std::move(left), true);
        adopt(*fleet->transports[static_cast<std::size_t>(b)], a, std::move(right), false);
      }
    }
    EXPECT_TRUE(fleet->poll_until([&] { return fleet->all_connected(); }));
    return fleet;
  };
  backend.make_endpoint = [=](int rank, Sockets sockets, Nanoseconds peer_timeout) {
    Endpoint endpoint{.pool = make_pool()};
    endpoint.transport = make_transport(world_of(2, rank), *endpoint.pool, peer_timeout);
    adopt(*endpoint.transport, 1 - rank, std::move(sockets), rank == 0);
    return endpoint;
  };
  return backend;
}

Backend shm(std::string name, std::optional<bool> one_copy) {
  return real(
      std::move(name), true, unix_pair,
      [=](const World& world, MemoryPool& pool, Nanoseconds peer_timeout) {
        return std::make_unique<ShmTransport>(
            world, pool, steady_clock(),
            ShmOptions{.one_copy = one_copy, .peer_timeout = peer_timeout});
      },
      [](Transport& transport, int peer, Sockets sockets, bool dialer) {
        dynamic_cast<ShmTransport&>(transport).adopt(peer, std::move(sockets[0]), dialer);
      });
}

Backend tcp(std::string name, tcp::Streams streams) {
  return real(
      std::move(name), false, tcp_pair,
      [=](const World& world, MemoryPool&, Nanoseconds peer_timeout) {
        return std::make_unique<TcpTransport>(world, steady_clock(), peer_timeout,
                                              TcpOptions{.streams = streams});
      },
      [](Transport& transport, int peer, Sockets sockets, bool) {
        auto& to = dynamic_cast<TcpTransport&>(transport);
        to.adopt(peer, std::move(sockets[0]));
        for (std::size_t i = 1; i < sockets.size(); ++i) {
          to.adopt_stream(peer, static_cast<int>(i), std::move(sockets[i]));
        }
      },
      streams.count);
}

// A simulated rank belongs to its network. The rank dies when this end is destroyed.
class SimEnd final : public Transport {
 public:
  SimEnd(SimNetwork& network, int rank)
      : network_(network), rank_(rank), sim_(network.transport(rank)) {}
  ~SimEnd() override { network_.kill(rank_); }

  void connect(int peer) override { sim_.connect(peer); }
  bool is_connected(int peer) const override { return sim_.is_connected(peer); }
  Reach reach(int peer) const override { return sim_.reach(peer); }
  PeerPool pool_of(int peer) const override { return sim_.pool_of(peer); }
  Status post_control(int peer, std::span<const std::byte> message) override {
    return sim_.post_control(peer, message);
  }
  Status post_send(const Transfer& transfer) override { return sim_.post_send(transfer); }
  Status post_recv(const Transfer& transfer) override { return sim_.post_recv(transfer); }
  Status publish(const Transfer& transfer) override { return sim_.publish(transfer); }
  Status await(int peer, Lane lane, uint64_t sequence, uint64_t cookie) override {
    return sim_.await(peer, lane, sequence, cookie);
  }
  Status release(int peer, Lane lane, uint64_t sequence) override {
    return sim_.release(peer, lane, sequence);
  }
  bool poll(Sink& sink) override { return sim_.poll(sink); }
  bool arm() override { return sim_.arm(); }
  int wait_handle() const override { return sim_.wait_handle(); }
  Nanoseconds next_deadline() const override { return sim_.next_deadline(); }
  void fail(int peer) override { sim_.fail(peer); }
  bool needs_poll() const override { return sim_.needs_poll(); }
  bool flushed() const override { return sim_.flushed(); }
  Counters counters() const override { return sim_.counters(); }

 private:
  SimNetwork& network_;
  const int rank_;
  SimTransport& sim_;
};

struct SimFleet final : Fleet {
  SimFleet(int ranks, const SimPolicy& policy) : network(ranks, policy) {
    sinks.resize(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      pools.push_back(make_pool());
      transports.push_back(std::make_unique<SimEnd>(network, rank));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer != rank) transports[static_cast<std::size_t>(rank)]->connect(peer);
      }
    }
  }
  ~SimFleet() override { transports.clear(); }  // before their network
  void step() override {
    for (int i = 0; i < 20 && network.step(); ++i) {
    }
  }

  SimNetwork network;
};

Backend sim(std::string name, SimPolicy policy) {
  Backend backend{.name = std::move(name), .views = policy.views};
  backend.make = [=](int ranks, Nanoseconds peer_timeout) {
    SimPolicy own = policy;
    own.peer_timeout = peer_timeout;
    std::unique_ptr<Fleet> fleet = std::make_unique<SimFleet>(ranks, own);
    EXPECT_TRUE(fleet->poll_until([&] { return fleet->all_connected(); }));
    return fleet;
  };
  return backend;
}

verbs_sim::AdapterModel infiniband_of_one_subnet(int host, int number) {
  return verbs_sim::infiniband(host, number);
}

Backend simulated_verbs(std::string name, verbs_sim::FabricPolicy policy,
                        std::vector<AdapterMaker> adapters, rdma::PeerOptions options = {}) {
  Backend backend{.name = std::move(name)};
  backend.make = [=](int ranks, Nanoseconds peer_timeout) {
    std::vector<VerbsRank> each;
    for (int rank = 0; rank < ranks; ++rank) {
      VerbsRank& made = each.emplace_back(VerbsRank{.options = options});
      made.options.peer_timeout = peer_timeout;
      for (const AdapterMaker& make : adapters) {
        made.adapters.push_back(make(rank, static_cast<int>(made.adapters.size())));
      }
    }
    auto fleet = std::make_unique<VerbsFleet>(policy, each);
    fleet->meet_all();
    EXPECT_TRUE(fleet->poll_until([&] { return fleet->all_connected(); }));
    return fleet;
  };
  return backend;
}

// RDMA devices of this machine ("rxe1,rxe2"), which ranks take in turn.
Backend devices(const std::string& names) {
  std::vector<std::string> each;
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ',');) each.push_back(name);
  return real(
      "rdma", false, tcp_pair,
      [=](const World& world, MemoryPool& pool, Nanoseconds peer_timeout) {
        rdma::Verbs* verbs = nullptr;
        std::vector<rdma::DeviceFacts> present;
        std::vector<rdma::Rail> rails;
        std::unique_ptr<RdmaTransport> transport;
        const std::string& own = each[static_cast<std::size_t>(world.rank) % each.size()];
        Status status = rdma::system_verbs(verbs);
        if (status.ok()) status = verbs->list(present);
        if (status.ok()) status = rdma::choose_rails(present, {.devices = own}, rails);
        if (status.ok()) {
          status = RdmaTransport::open(world, pool, steady_clock(), *verbs, rails,
                                       {.peer_timeout = peer_timeout}, transport);
        }
        EXPECT_TRUE(status.ok()) << status.message();
        return transport;
      },
      [](Transport& transport, int peer, Sockets sockets, bool) {
        dynamic_cast<RdmaTransport&>(transport).adopt(peer, std::move(sockets[0]));
      });
}

}  // namespace

std::vector<Backend> backends() {
  // If devices are named, the suite tests these alone.
  if (const char* names = std::getenv("RDMACOLL_TEST_DEVICES")) return {devices(names)};
  return {shm("shm_one_copy", true),
          shm("shm_staged", false),
          tcp("tcp", {}),
          tcp("tcp_streams", {.count = 3, .stripe_bytes = 20'000}),
          sim("sim_mapped", {.seed = 11, .busy = 0.02}),
          sim("sim_read", {.seed = 12, .busy = 0.1, .mapped = false}),
          sim("sim_no_views", {.seed = 13, .busy = 0.02, .views = false}),
          simulated_verbs("verbs_roce", {.seed = 21}, {verbs_sim::soft_roce}),
          simulated_verbs("verbs_roce_small", {.seed = 22, .full = 0.05}, {verbs_sim::ethernet},
                          {.accumulation_bytes = 512, .chunk_bytes = 3000}),
          simulated_verbs("verbs_infiniband_rails", {.seed = 23},
                          {infiniband_of_one_subnet, infiniband_of_one_subnet},
                          {.chunk_bytes = 20'000})};
}

}  // namespace rdmacoll::conformance
