#include "transport/tcp/tcp_peer.h"

#include <algorithm>
#include <cerrno>

#include "base/small_range.h"
#include "base/text.h"
#include "transport/closing.h"

namespace rdmacoll::tcp {
namespace {

// When a process ends, all its connections end. The first stream then reports the end, after its
// last bytes. Its end may be late by one retransmitted packet. A further stream that ended longer
// ago than this is a cause of its own.
constexpr Nanoseconds kEndTogether = 250 * kMillisecond;
// If the first stream goes on for this long, only the further stream has ended.
constexpr Nanoseconds kEndAlone = kSecond;

}  // namespace

std::string stream_text(int number, int streams, const std::string& cause) {
  return cat("stream ", number + 1, " of ", streams, " failed: ", cause,
             " (RDMACOLL_TCP_STREAMS=1 does with the first one)");
}

void TcpPeer::adopt(Fd socket, Nanoseconds peer_timeout, Nanoseconds now) {
  RC_ASSERT(state_ == State::apart, cat("peer ", peer_));
  stream_.adopt(std::move(socket));
  liveness_.emplace(peer_timeout, now);
  state_ = State::connected;
}

StreamSocket& TcpPeer::adopt_stream(int number, const Streams& streams, Fd socket,
                                    Nanoseconds peer_timeout, Nanoseconds now) {
  RC_ASSERT(is_connected() && number > 0 && number < streams.count, cat("stream ", number));
  streams_ = streams.count;
  outbound_.share(streams.stripe_bytes);
  inbound_.share(streams.stripe_bytes);
  beside_.push_back(std::make_unique<SideStream>(number, epoch_, outbound_, inbound_, counters_));
  beside_.back()->adopt(std::move(socket), peer_timeout, now);
  return beside_.back()->socket();
}

Status TcpPeer::post_recv(const Transfer& transfer) {
  bool came_first = false;
  RC_RETURN_IF_ERROR(inbound_.post_recv(transfer, came_first));
  outbound_.grant(transfer.lane, transfer.sequence, total_bytes(transfer.pieces), came_first);
  return {};
}

bool TcpPeer::wants_poll() const {
  return state_ == State::connected &&
         (stream_.readable || inbound_.has_reports() || !fault().empty() ||
          (stream_.writable && outbound_.has_output()) ||
          is_any_of(beside_, [](const auto& side) { return side->wants_poll(); }));
}

bool TcpPeer::write_at_once(Nanoseconds now, Sink& sink) {
  if (!stream_.writable || !fault().empty() || !outbound_.has_output()) return false;
  if (output_waits()) return false;
  if (!write(now, sink)) return false;
  stream_.readable = true;
  return true;
}

bool TcpPeer::poll(Nanoseconds now, Sink& sink) {
  liveness_->polled(now);
  bool moved = inbound_.report(sink);
  const bool waits = output_waits();
  if (stream_.readable) moved |= read(now, sink);
  if (is_connected() && !beside_.empty()) moved |= poll_beside(now, sink);
  if (is_connected() && !fault().empty()) fail(fault());
  if (is_connected() && liveness_->is_silent(now)) fail(liveness_->cause());
  if (is_connected() && liveness_->is_heartbeat_due(now)) {
    outbound_.heartbeat();
    liveness_->sent(now);  // also when the socket is full: then the peer is silent
  }
  if (is_connected() && stream_.writable && outbound_.has_output() && !waits) {
    moved |= write(now, sink);
  }
  return moved;
}

bool TcpPeer::read(Nanoseconds now, Sink& sink) {
  const Inbound::Result result = inbound_.read(stream_.fd.get(), stream_.hangup, outbound_, sink);
  if (result.moved) liveness_->received(now);
  if (result.drained) stream_.readable = false;
  if (!result.ended.empty()) end(result.ended, now, sink);
  return result.moved;
}

bool TcpPeer::write(Nanoseconds now, Sink& sink) {
  switch (outbound_.write(stream_.fd.get(), sink)) {
    case Outbound::Result::idle:
      return false;
    case Outbound::Result::moved:
      liveness_->sent(now);
      return true;
    case Outbound::Result::blocked:
      stream_.writable = false;
      return true;
    case Outbound::Result::broken:
      drain_and_fail(closing_cause(errno), now, sink);
      return true;
  }
  return false;
}

// Reads the bytes that the peer sent before its end, then fails the peer.
void TcpPeer::drain_and_fail(const std::string& cause, Nanoseconds now, Sink& sink) {
  stream_.hangup = stream_.readable = true;
  while (is_connected() && stream_.readable) read(now, sink);
  if (is_connected()) fail(cause);
}

bool TcpPeer::poll_beside(Nanoseconds now, Sink& sink) {
  bool moved = false;
  for (const auto& side : beside_) {
    moved |= side->poll(now, sink);
    if (side->cause().empty()) continue;
    if (side->has_ended()) read(now, sink);
    if (!is_connected()) return true;
    if (side->has_ended() && now - side->ended_at() < kEndAlone) continue;
    fail(stream_text(side->number(), streams_, side->cause()));
    return true;
  }
  return moved;
}

// Handles the end of the first stream.
void TcpPeer::end(const std::string& cause, Nanoseconds now, Sink& sink) {
  for (const auto& side : beside_) {
    side->drain(now, sink);
    if (!side->has_ended() || now - side->ended_at() < kEndTogether) continue;
    return fail(stream_text(side->number(), streams_, side->cause()));
  }
  fail(cause);
}

void TcpPeer::fail(const std::string& cause) {
  std::string reason = cause;  // close() may clear the string that `cause` refers to
  close();
  cause_ = std::move(reason);
}

void TcpPeer::close() {
  state_ = State::failed;
  stream_.fd.reset();
  for (const auto& side : beside_) side->close();
  outbound_.clear();
  inbound_.clear();
  cause_.clear();
}

bool TcpPeer::is_sending() const {
  return outbound_.has_output() || outbound_.awaits_grants() ||
         is_any_of(beside_, [](const auto& side) { return side->is_sending(); });
}

bool TcpPeer::has_stream(int number) const {
  return is_any_of(beside_, [&](const auto& side) { return side->number() == number; });
}

bool TcpPeer::flushed() const {
  if (!is_connected()) return true;
  // A send without a grant cannot leave and does not count.
  return !outbound_.has_output() && stream_.is_acknowledged() &&
         are_all_of(beside_, [](const auto& side) { return side->flushed(); });
}

Nanoseconds TcpPeer::next_deadline() const {
  Nanoseconds deadline = liveness_->next_deadline();
  for (const auto& side : beside_) {
    const Nanoseconds next =
        side->has_ended() ? side->ended_at() + kEndAlone : side->next_deadline();
    deadline = std::min(deadline, next);
  }
  return deadline;
}

}  // namespace rdmacoll::tcp
