// Listening and connecting: non-blocking stream sockets, TCP and abstract Unix.
#pragma once

#include <sys/socket.h>

#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/addresses.h"

namespace rdmacoll {

// Where to listen or to connect to, and how to say so.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t bytes = 0;
  std::string text;
  uint16_t port = 0;       // of TCP; 0: as the system likes
  std::string congestion;  // control of TCP, as well of what is accepted; empty: the system's

  int family() const { return address.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};
Endpoint tcp_endpoint(const SocketAddress& address, const std::string& congestion = {});
Endpoint unix_endpoint(const std::string& name);  // abstract: no file, gone with its owner

// Whether the kernel lets this process send by this congestion control. A setting is tried first:
// afterwards nobody is there who could be told.
Status try_congestion_control(const std::string& name);

// Of an endpoint with a port also where connections of a former listener go on. Code::invalid: the
// port is taken.
Status listen_at(const Endpoint& endpoint, Fd& socket);

// Starts to connect; 0, or an errno. The result comes with writability: see connect_error().
int start_connect(const Endpoint& endpoint, Fd& socket);
int connect_error(int socket);  // 0: connected; EINPROGRESS: not yet

// For so long a rank without descriptors tries again: another thread may close some. Less than the
// time that its peer has, so that who knows the cause tells it.
inline constexpr Nanoseconds kShortagePatience = kSecond;

SocketAddress local_address(int socket);

// Of a connected Unix socket: the process at the other end has our user id.
bool is_same_user(int socket);

}  // namespace rdmacoll
