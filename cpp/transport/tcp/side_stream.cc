#include "transport/tcp/side_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll::tcp {
namespace {

constexpr std::size_t kIovecs = 128;

// Longer than the first stream's timeout: if a host vanishes, all streams are silent, and the first
// stream reports it.
constexpr Nanoseconds timeout_beside(Nanoseconds peer_timeout) { return peer_timeout * 3 / 2; }

}  // namespace

SideStream::SideStream(int number, uint32_t epoch, Outbound& outbound, Inbound& inbound,
                       Transport::Counters& counters)
    : number_(number), epoch_(epoch), outbound_(outbound), inbound_(inbound), counters_(counters) {}

void SideStream::adopt(Fd socket, Nanoseconds peer_timeout, Nanoseconds now) {
  socket_.adopt(std::move(socket));
  liveness_.emplace(timeout_beside(peer_timeout), now);
}

bool SideStream::wants_poll() const {
  return is_open() &&
         (socket_.readable || (socket_.writable && (is_sending() || outbound_.has_stripe())));
}

Nanoseconds SideStream::next_deadline() const {
  return is_open() ? liveness_->next_deadline() : kNever;
}

bool SideStream::poll(Nanoseconds now, Sink& sink) {
  if (!is_open()) return false;
  liveness_->polled(now);
  bool moved = socket_.readable && read(now, sink);
  if (is_open() && liveness_->is_silent(now)) cause_ = liveness_->cause();
  if (!is_open()) return true;
  if (liveness_->is_heartbeat_due(now)) {
    if (!is_sending()) {
      header_ = encode({.kind = Kind::heartbeat, .epoch = epoch_});
      header_left_ = kHeaderBytes;
    }
    liveness_->sent(now);
  }
  if (socket_.writable) moved |= write(now, sink);
  return moved;
}

void SideStream::drain(Nanoseconds now, Sink& sink) {
  socket_.hangup = socket_.readable = true;
  while (is_open() && socket_.readable) read(now, sink);
}

void SideStream::close() {
  socket_.fd.reset();
  cause_.clear();
  ended_at_ = kNever;
  header_left_ = out_left_ = came_bytes_ = in_left_ = 0;
}

void SideStream::end(int error, Nanoseconds now) {
  const bool is_orderly = error == 0 || error == EPIPE;
  cause_ = is_orderly ? "closed by the other end, or on the way" : error_text(error);
  ended_at_ = now;
}

bool SideStream::read(Nanoseconds now, Sink& sink) {
  bool moved = false;
  for (std::size_t total = 0; total < kReadBytesPerPoll;) {
    std::size_t wanted = 0;
    const ssize_t count = receive(wanted);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      socket_.readable = false;
      return moved;
    }
    if (count <= 0) {
      end(count == 0 ? 0 : errno, now);
      return true;
    }
    moved = true;
    liveness_->received(now);
    total += static_cast<std::size_t>(count);
    if (in_.done == in_.bytes && in_.bytes > 0) {
      inbound_.stripe_received(in_slot_, in_.bytes, sink);
      in_.bytes = in_.done = 0;
    }
    if (came_bytes_ == kHeaderBytes) cause_ = begin_frame();
    if (!cause_.empty()) return true;
    if (static_cast<std::size_t>(count) < wanted && !socket_.hangup) {
      socket_.readable = false;
      return moved;
    }
  }
  return moved;
}

// Makes one system call: reads the payload straight into its place, then the next header.
ssize_t SideStream::receive(std::size_t& wanted) {
  std::array<iovec, kIovecs> iovecs;
  std::size_t used = 0;
  const std::size_t direct = in_.gather(in_left_, std::span(iovecs).first(kIovecs - 1), used);
  wanted = direct;
  if (direct == in_left_) {
    iovecs[used++] = iovec{came_.data() + came_bytes_, kHeaderBytes - came_bytes_};
    wanted += kHeaderBytes - came_bytes_;
  }
  msghdr message{};
  message.msg_iov = iovecs.data();
  message.msg_iovlen = used;
  const ssize_t count = ::recvmsg(socket_.fd.get(), &message, MSG_DONTWAIT);
  if (count <= 0) return count;
  const std::size_t placed = std::min(static_cast<std::size_t>(count), direct);
  if (placed > 0) {
    in_.advance(placed);
    in_left_ -= placed;
    counters_.bytes_received += placed;
  }
  came_bytes_ += static_cast<std::size_t>(count) - placed;
  return count;
}

std::string SideStream::begin_frame() {
  Header frame;
  std::string wrong = decode(came_, epoch_, frame);
  came_bytes_ = 0;
  if (!wrong.empty()) return cat("sent ", wrong);
  if (frame.kind == Kind::heartbeat) return "";
  if (frame.kind != Kind::data) {
    return cat("sent a frame of the kind ", static_cast<int>(frame.kind),
               ", which belongs on the first stream");
  }
  wrong = inbound_.begin_stripe(frame, in_, in_slot_);
  if (wrong.empty()) in_left_ = in_.bytes;
  return wrong;
}

// Writes one stripe. Other streams then have a turn.
bool SideStream::write(Nanoseconds now, Sink& sink) {
  if (!is_sending()) {
    Header header;
    if (!outbound_.take_stripe(header, out_, out_slot_)) return false;
    header_ = encode(header);
    header_left_ = kHeaderBytes;
    out_left_ = out_.bytes;
  }
  while (is_sending()) {
    std::array<iovec, kIovecs> iovecs;
    std::size_t used = 0;
    if (header_left_ > 0) {
      iovecs[used++] = iovec{header_.data() + kHeaderBytes - header_left_, header_left_};
    }
    const std::size_t named = header_left_ + out_.gather(out_left_, iovecs, used);
    msghdr message{};
    message.msg_iov = iovecs.data();
    message.msg_iovlen = used;
    const ssize_t count = ::sendmsg(socket_.fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      socket_.writable = false;
      return true;
    }
    if (count < 0) {
      const int error = errno;
      drain(now, sink);
      if (is_open()) end(error, now);
      return true;
    }
    liveness_->sent(now);
    const auto written = static_cast<std::size_t>(count);
    const std::size_t header = std::min(written, header_left_);
    header_left_ -= header;
    const std::size_t payload = written - header;
    if (payload > 0) out_.advance(payload);
    out_left_ -= payload;
    counters_.bytes_sent += payload;
    counters_.bytes_striped += payload;
    if (payload > 0 && out_left_ == 0) outbound_.stripe_sent(out_slot_, out_.bytes, sink);
    // The kernel has noted that we want more room, and reports when there is some.
    if (written < named) {
      socket_.writable = false;
      return true;
    }
  }
  return true;
}

}  // namespace rdmacoll::tcp
