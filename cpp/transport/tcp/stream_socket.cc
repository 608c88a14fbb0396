#include "transport/tcp/stream_socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <utility>

#include "base/status.h"

namespace rdmacoll::tcp {
namespace {

constexpr int kUnsentBytes = 256 * 1024;

}  // namespace

void StreamSocket::adopt(Fd socket) {
  fd = std::move(socket);
  const int flags = ::fcntl(fd.get(), F_GETFL);
  RC_ASSERT(flags >= 0 && ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) == 0);
  // Small frames must not wait for an acknowledgement. Unix sockets refuse this and do not need it.
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Grants and control messages wait behind unsent bytes in the kernel. A long queue there also
  // slows the data, as measured.
  const int unsent = kUnsentBytes;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  readable = writable = true;
}

void StreamSocket::signal(uint32_t events) {
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable = true;
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) hangup = true;
  if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) writable = true;
}

bool StreamSocket::is_acknowledged() const {
  int queued = 0;
  return ::ioctl(fd.get(), SIOCOUTQ, &queued) != 0 || queued == 0;
}

}  // namespace rdmacoll::tcp
