#include "transport/tcp/tcp_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {

using tcp::TcpPeer;

TcpTransport::TcpTransport(const World& world, const Clock& clock, Nanoseconds peer_timeout,
                           TcpOptions options)
    : clock_(clock),
      peer_timeout_(peer_timeout),
      rank_(world.rank),
      streams_(options.streams),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) opened_ = system_error("epoll_create1", errno);
  for (int peer = 0; peer < world.size(); ++peer) {
    peers_.push_back(peer == rank_
                         ? nullptr
                         : std::make_unique<TcpPeer>(peer, world.epoch, options.chunk_bytes,
                                                     eager_bytes_of_peer(world.size()), counters_));
  }
  active_.reserve(peers_.size());
  arrived_.reserve(peers_.size());
}

TcpPeer& TcpTransport::peer_at(int peer) {
  RC_ASSERT(peer >= 0 && peer < static_cast<int>(peers_.size()) && peer != rank_,
            cat("peer ", peer));
  return *peers_[peer];
}

const TcpPeer& TcpTransport::peer_at(int peer) const {
  return const_cast<TcpTransport*>(this)->peer_at(peer);
}

void TcpTransport::adopt(int peer, Fd socket, bool) {
  TcpPeer& to = peer_at(peer);
  if (to.state() != TcpPeer::State::apart) return;
  const Status watched = watch_stream(socket.get(), to.socket());
  if (!watched.ok()) return give_up(peer, watched.message());
  to.adopt(std::move(socket), peer_timeout_, clock_.now());
  active_.push_back(&to);
  arrived_.push_back(peer);
  ++counters_.connections;
}

void TcpTransport::adopt_stream(int peer, int number, Fd socket) {
  TcpPeer& to = peer_at(peer);
  if (!to.is_connected() || to.has_stream(number)) return;
  const int descriptor = socket.get();
  tcp::StreamSocket& stream =
      to.adopt_stream(number, streams_, std::move(socket), peer_timeout_, clock_.now());
  const Status watched = watch_stream(descriptor, stream);
  if (!watched.ok()) return give_up(peer, watched.message());
  ++counters_.connections;
}

std::string TcpTransport::stream_failure(int number, const std::string& cause) const {
  return tcp::stream_text(number, streams_.count, cause);
}

std::string TcpTransport::missing_streams(int opened) const {
  return cat("it opened ", opened, " of ", streams_.count,
             " streams (RDMACOLL_TCP_STREAMS=1 does with the first one, where a firewall counts "
             "connections)");
}

// Edge-triggered epoll needs one registration for good. Level-triggering would cost a system call
// each time that a socket becomes full or has room again.
Status TcpTransport::watch_stream(int socket, tcp::StreamSocket& stream) {
  return watch(epoll_.get(), socket,
               {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.ptr = &stream}});
}

void TcpTransport::give_up(int peer, const std::string& cause) {
  peer_at(peer).close();
  drop_inactive();
  failed_early_.emplace_back(peer, cause);
}

bool TcpTransport::is_connected(int peer) const { return peer_at(peer).is_connected(); }

Reach TcpTransport::reach(int) const {
  const std::size_t ahead = eager_bytes_of_peer(static_cast<int>(peers_.size()));
  const bool announces = streams_.count == 1 && ahead >= tcp::kAnnouncedBytes + tcp::kEagerCost;
  return {.transport = "tcp",
          .transfer_bytes_max = tcp::kTransferBytesMax,
          .eager_bytes = std::min(tcp::kEagerBytes, ahead - std::min(ahead, tcp::kEagerCost)),
          .announced_bytes = announces ? tcp::kAnnouncedBytes : 0};
}

Status TcpTransport::post_control(int peer, std::span<const std::byte> message) {
  TcpPeer& to = peer_at(peer);
  if (to.state() == TcpPeer::State::apart) return Status::busy();
  return to.is_connected() ? to.outbound().post_control(message) : Status();
}

Status TcpTransport::post_send(const Transfer& transfer) {
  TcpPeer& to = peer_at(transfer.peer);
  if (to.state() == TcpPeer::State::apart) return Status::busy();
  return to.is_connected() ? to.outbound().post_send(transfer) : Status();
}

Status TcpTransport::post_recv(const Transfer& transfer) {
  TcpPeer& from = peer_at(transfer.peer);
  if (from.state() == TcpPeer::State::apart) return Status::busy();
  return from.is_connected() ? from.post_recv(transfer) : Status();
}

void TcpTransport::take_signals() {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    static_cast<tcp::StreamSocket*>(events[i].data.ptr)->signal(events[i].events);
  }
}

bool TcpTransport::poll(Sink& sink) {
  if (active_.empty() && failed_early_.empty()) return false;
  bool moved = !arrived_.empty() || !failed_early_.empty();
  for (const auto& [peer, cause] : failed_early_) sink.peer_failed(peer, cause);
  failed_early_.clear();
  for (const int peer : arrived_) {
    if (peer_at(peer).is_connected()) sink.connected(peer);
  }
  arrived_.clear();
  const Nanoseconds now = clock_.now();
  bool wrote = false;
  for (TcpPeer* peer : active_) wrote |= peer->write_at_once(now, sink);
  // Takes signals at least every other turn, even if there is always data to write.
  asks_ = !(wrote && asks_);
  if (asks_) take_signals();
  moved |= wrote;
  bool lost = false;
  for (TcpPeer* peer : active_) {
    if (peer->is_connected()) moved |= peer->poll(now, sink);
    if (peer->is_connected()) continue;
    lost = true;
    sink.peer_failed(peer->peer(), peer->take_cause());
  }
  if (lost) drop_inactive();
  return moved || lost;
}

void TcpTransport::drop_inactive() {
  std::erase_if(active_, [](const TcpPeer* peer) { return !peer->is_connected(); });
}

bool TcpTransport::arm() {
  if (!arrived_.empty() || !failed_early_.empty()) return false;
  take_signals();
  return std::none_of(active_.begin(), active_.end(),
                      [](const TcpPeer* peer) { return peer->wants_poll(); });
}

Nanoseconds TcpTransport::next_deadline() const {
  Nanoseconds deadline = kNever;
  for (const TcpPeer* peer : active_) deadline = std::min(deadline, peer->next_deadline());
  return deadline;
}

void TcpTransport::fail(int peer) {
  peer_at(peer).close();
  std::erase_if(failed_early_, [peer](const auto& entry) { return entry.first == peer; });
  drop_inactive();
}

bool TcpTransport::needs_poll() const {
  return !failed_early_.empty() ||
         std::any_of(active_.begin(), active_.end(),
                     [](const TcpPeer* peer) { return peer->is_sending(); });
}

bool TcpTransport::flushed() const {
  return std::all_of(active_.begin(), active_.end(),
                     [](const TcpPeer* peer) { return peer->flushed(); });
}

}  // namespace rdmacoll
