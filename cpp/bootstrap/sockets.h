// Listening and connecting: non-blocking stream sockets, TCP and abstract Unix.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/addresses.h"

namespace rdmacoll {

// An address to listen at or to connect to, and its text.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t bytes = 0;
  std::string text;
  uint16_t port = 0;       // TCP only; 0: chosen by the system
  std::string congestion;  // TCP's, also for accepted connections; empty: the system's

  int family() const { return address.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};
Endpoint tcp_endpoint(const SocketAddress& address, const std::string& congestion = {});
Endpoint unix_endpoint(const std::string& name);  // abstract: no file, gone with its owner

// Checks that the kernel lets this process use a congestion control. A setting is tried before it
// is used, since a later failure could not be reported.
Status try_congestion_control(const std::string& name);

// Listens at an endpoint. With a port, it also does so where connections of a former listener go
// on. Code::invalid: the port is taken.
Status listen_at(const Endpoint& endpoint, Fd& socket);

// Starts to connect. Returns 0 or an errno. The result comes when the socket is writable: see
// connect_error().
int start_connect(const Endpoint& endpoint, Fd& socket);
int connect_error(int socket);  // 0: connected; EINPROGRESS: not yet

// A rank without descriptors retries for this long, since another thread may close some. This is
// less than the peer's timeout, so that the rank that knows the cause reports it.
inline constexpr Nanoseconds kShortageTimeout = kSecond;

// Send and receive as many of the bytes as a non-blocking stream socket takes or has at once.
// `done` counts the bytes from the beginning of the buffer. Ok also if nothing moved; an error
// names the cause.
Status send_available(int socket, std::span<const std::byte> bytes, std::size_t& done);
// `has_ended`: the peer has closed the connection. It is then ok, too.
Status receive_available(int socket, std::span<std::byte> bytes, std::size_t& done,
                         bool& has_ended);

SocketAddress local_address(int socket);

// Whether the process at the other end of a connected Unix socket has our user id.
bool is_same_user(int socket);

}  // namespace rdmacoll
