#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "conformance/harness.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace rdmacoll::conformance {
namespace {

std::pair<Fd, Fd> unix_pair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
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

using MakeTransport =
    std::function<std::unique_ptr<Transport>(const World&, MemoryPool&, Nanoseconds)>;
using Adopt = std::function<void(Transport&, int peer, Fd socket, bool dialer)>;

Backend real(std::string name, bool views, std::function<std::pair<Fd, Fd>()> sockets,
             MakeTransport make_transport, Adopt adopt) {
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
  backend.make_endpoint = [=](int rank, Fd socket, Nanoseconds peer_timeout) {
    Endpoint endpoint{.pool = make_pool()};
    endpoint.transport = make_transport(world_of(2, rank), *endpoint.pool, peer_timeout);
    adopt(*endpoint.transport, 1 - rank, std::move(socket), rank == 0);
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
      [](Transport& transport, int peer, Fd socket, bool dialer) {
        dynamic_cast<ShmTransport&>(transport).adopt(peer, std::move(socket), dialer);
      });
}

Backend tcp() {
  return real(
      "tcp", false, tcp_pair,
      [](const World& world, MemoryPool&, Nanoseconds peer_timeout) {
        return std::make_unique<TcpTransport>(world, steady_clock(), peer_timeout);
      },
      [](Transport& transport, int peer, Fd socket, bool) {
        dynamic_cast<TcpTransport&>(transport).adopt(peer, std::move(socket));
      });
}

}  // namespace

std::vector<Backend> backends() {
  return {shm("shm_one_copy", true), shm("shm_staged", false), tcp()};
}

}  // namespace rdmacoll::conformance
