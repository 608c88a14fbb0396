#include "transport/tcp/tcp_link.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

#include "transport/closing.h"

namespace rdmacoll::tcp {
namespace {

constexpr int kUnsentBytes = 256 * 1024;

}  // namespace

void Link::adopt(Fd socket, Nanoseconds peer_timeout, Nanoseconds now) {
  RC_ASSERT(state_ == State::apart, cat("peer ", peer_));
  socket_ = std::move(socket);
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  RC_ASSERT(flags >= 0 && ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) == 0);
  // Small frames must not wait for an acknowledgement. Unix sockets refuse this and do not need it.
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // What the kernel has and has not sent is what grants and control messages wait behind. A long
  // queue there slows the data, too: at 10 Gbit/s 64 MiB both ways take 59 ms instead of 65 (BBR).
  const int unsent = kUnsentBytes;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  liveness_.emplace(peer_timeout, now);
  readable_ = writable_ = true;
  state_ = State::connected;
}

Status Link::post_recv(const Transfer& transfer) {
  RC_RETURN_IF_ERROR(inbound_.post_recv(transfer));
  outbound_.grant(transfer.lane, transfer.sequence, total_bytes(transfer.pieces));
  return {};
}

void Link::signal(uint32_t events) {
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable_ = true;
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) hangup_ = true;
  if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) writable_ = true;
}

bool Link::wants_poll() const {
  return state_ == State::connected && (readable_ || inbound_.has_reports() || !fault().empty() ||
                                        (writable_ && outbound_.has_output()));
}

bool Link::write_at_once(Nanoseconds now, Sink& sink) {
  if (!writable_ || !fault().empty() || !outbound_.has_output()) return false;
  if (!write(now, sink)) return false;
  readable_ = true;
  return true;
}

bool Link::poll(Nanoseconds now, Sink& sink) {
  liveness_->polled(now);
  bool moved = inbound_.report(sink);
  if (readable_) moved |= read(now, sink);
  if (is_connected() && !fault().empty()) fail(fault());
  if (is_connected() && liveness_->is_silent(now)) fail(liveness_->cause());
  if (is_connected() && liveness_->should_speak(now)) {
    outbound_.heartbeat();
    liveness_->spoke(now);  // also where the socket is full: then silence is the peer's
  }
  if (is_connected() && writable_ && outbound_.has_output()) moved |= write(now, sink);
  return moved;
}

bool Link::read(Nanoseconds now, Sink& sink) {
  const Inbound::Result result = inbound_.read(socket_.get(), hangup_, outbound_, sink);
  if (result.moved) liveness_->heard(now);
  if (result.drained) readable_ = false;
  if (!result.ended.empty()) fail(result.ended);
  return result.moved;
}

bool Link::write(Nanoseconds now, Sink& sink) {
  switch (outbound_.write(socket_.get(), sink)) {
    case Outbound::Result::idle:
      return false;
    case Outbound::Result::moved:
      liveness_->spoke(now);
      return true;
    case Outbound::Result::blocked:
      writable_ = false;
      return true;
    case Outbound::Result::broken:
      drain_and_fail(closing_cause(errno), now, sink);
      return true;
  }
  return false;
}

// The peer is gone, but what it had sent before is ours still.
void Link::drain_and_fail(const std::string& cause, Nanoseconds now, Sink& sink) {
  hangup_ = readable_ = true;
  while (is_connected() && readable_) read(now, sink);
  if (is_connected()) fail(cause);
}

void Link::fail(const std::string& cause) {
  std::string reason = cause;  // close() may clear what it refers to
  close();
  cause_ = std::move(reason);
}

void Link::close() {
  state_ = State::failed;
  socket_.reset();
  outbound_.clear();
  inbound_.clear();
  cause_.clear();
}

bool Link::flushed() const {
  if (!is_connected()) return true;
  // A send that was never granted cannot leave and does not count.
  if (outbound_.has_output()) return false;
  int queued = 0;
  return ::ioctl(socket_.get(), SIOCOUTQ, &queued) != 0 || queued == 0;
}

}  // namespace rdmacoll::tcp
