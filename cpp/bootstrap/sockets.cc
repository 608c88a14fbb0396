#include "bootstrap/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <system_error>

#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// All ranks of a job may call at once, while this rank is still busy with its start.
constexpr int kBacklog = 4096;

int set_congestion(const Fd& socket, const std::string& name) {
  return ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                      static_cast<socklen_t>(name.size()));
}

// Sets the congestion control before the socket is connected: BBR's pacing would outlive BBR.
Fd new_socket(const Endpoint& endpoint) {
  Fd socket(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket && !endpoint.congestion.empty()) (void)set_congestion(socket, endpoint.congestion);
  return socket;
}

}  // namespace

Status try_congestion_control(const std::string& name) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return system_error("cannot open a socket", errno);
  if (set_congestion(socket, name) == 0) return {};
  const int error = errno;
  std::string allowed;
  std::ifstream list("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  std::getline(list, allowed);
  return {Code::invalid,
          cat("RDMACOLL_TCP_CONGESTION=", name, ": the kernel ",
              error == EPERM ? "does not let this user take it" : "does not have it", " (",
              error_text(error), "). ",
              allowed.empty() ? "Leave it unset." : cat("It allows everybody: ", allowed, "."))};
}

Endpoint tcp_endpoint(const SocketAddress& address, const std::string& congestion) {
  Endpoint endpoint;
  endpoint.congestion = congestion;
  endpoint.bytes = address.bytes();
  endpoint.text = address.text();
  endpoint.port = address.port();
  std::memcpy(&endpoint.address, address.get(), address.bytes());
  return endpoint;
}

Endpoint unix_endpoint(const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX};
  RC_ASSERT(name.size() + 1 <= sizeof address.sun_path, name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // [0] = 0: abstract
  Endpoint endpoint;
  endpoint.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  endpoint.text = cat("unix:", name);
  std::memcpy(&endpoint.address, &address, endpoint.bytes);
  return endpoint;
}

Status listen_at(const Endpoint& endpoint, Fd& socket) {
  socket = new_socket(endpoint);
  if (!socket) return system_error("cannot open a socket", errno);
  const int on = 1;
  if (endpoint.family() == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (endpoint.port != 0) {
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (::bind(socket.get(), endpoint.get(), endpoint.bytes) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE && endpoint.port != 0) {
      return Status(Code::invalid,
                    cat("cannot listen at ", endpoint.text,
                        ": another program has that port. Every rank of a host needs its own "
                        "RDMACOLL_PORT, or none."));
    }
    return system_error(cat("cannot listen at ", endpoint.text), errno);
  }
  return {};
}

int start_connect(const Endpoint& endpoint, Fd& socket) {
  socket = new_socket(endpoint);
  if (!socket) return errno;
  int result = 0;
  do {
    result = ::connect(socket.get(), endpoint.get(), endpoint.bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EINPROGRESS) return 0;
  const int error = errno;
  socket.reset();
  return error;
}

int connect_error(int socket) {
  pollfd ready{.fd = socket, .events = POLLOUT};
  if (::poll(&ready, 1, 0) <= 0) return EINPROGRESS;
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
  return error;
}

Status send_available(int socket, std::span<const std::byte> bytes, std::size_t& done) {
  while (done < bytes.size()) {
    const ssize_t count =
        ::send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (count < 0) return {Code::failed, std::generic_category().message(errno)};
    done += static_cast<std::size_t>(count);
  }
  return {};
}

Status receive_available(int socket, std::span<std::byte> bytes, std::size_t& done,
                         bool& has_ended) {
  while (done < bytes.size()) {
    const ssize_t count = ::recv(socket, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (count < 0) return {Code::failed, std::generic_category().message(errno)};
    if (count == 0) {
      has_ended = true;
      return {};
    }
    done += static_cast<std::size_t>(count);
  }
  return {};
}

SocketAddress local_address(int socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  const int result = ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes);
  RC_ASSERT(result == 0, error_text(errno));
  return SocketAddress(reinterpret_cast<const sockaddr*>(&address));
}

bool is_same_user(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 &&
         credentials.uid == ::geteuid();
}

}  // namespace rdmacoll
