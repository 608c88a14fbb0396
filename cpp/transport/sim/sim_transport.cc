#include "transport/sim/sim_transport.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace rdmacoll {
namespace {

std::vector<Piece> copy_of(std::span<const Piece> pieces) { return {pieces.begin(), pieces.end()}; }

}  // namespace

SimTransport::SimTransport(SimNetwork& network, int rank)
    : network_(network),
      rank_(rank),
      peers_(network.ranks()),
      polled_at_(network.clock().now()),
      silence_from_(network.ranks(), polled_at_) {}

Status SimTransport::Reader::read(std::span<const RemotePiece> from, std::size_t skip,
                                  std::byte* into, std::size_t bytes) const {
  for (const RemotePiece& piece : from) {
    if (skip >= piece.bytes) {
      skip -= piece.bytes;
      continue;
    }
    const std::size_t part = std::min(bytes, piece.bytes - skip);
    std::memcpy(into, reinterpret_cast<const std::byte*>(piece.address) + skip, part);
    into += part;
    bytes -= part;
    skip = 0;
    if (bytes == 0) return {};
  }
  return bytes == 0 ? Status() : Status(Code::failed, "a view is shorter than the read");
}

// ---- connections ----

void SimTransport::connect(int peer) {
  Peer& to = peers_[peer];
  if (to.wanted || to.connected || to.dropped) return;
  to.wanted = true;
  silence_from_[peer] = network_.clock().now();
  network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::ordered,
                [this, peer] { other(peer).greet(rank_); });
}

void SimTransport::greet(int peer) {
  Peer& from = peers_[peer];
  if (from.dropped) {  // an unserved socket: the other end sees it close
    network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::last,
                  [this, peer] { other(peer).lose(rank_, "closed its connection"); });
  }
  if (from.connected || from.dropped || network_.is_dead(peer)) return;
  // A connect() of either side makes the connection. The other end learns of it after a message's
  // travel time.
  from.connected = true;
  ++counters_.connections;
  ++counters_.handshakes;
  silence_from_[peer] = network_.clock().now();
  arrive({.kind = Arrival::Kind::connected, .peer = peer});
  network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::ordered,
                [this, peer] { other(peer).greet(rank_); });
}

Reach SimTransport::reach(int peer) const {
  RC_ASSERT(is_connected(peer), cat("rank ", peer, " is not connected"));
  const SimPolicy& policy = network_.policy();
  const bool views = policy.views && policy.node_of(peer) == policy.node_of(rank_);
  return {.transport = "sim",
          .views = views,
          .foreign_views = views && policy.foreign_views,
          .lends = views && policy.mapped,
          .view_pieces_max = 64,
          .transfer_bytes_max = std::size_t{1} << 30,
          .foreign_transfers = !policy.pool_alone || views,
          .eager_bytes = eager_bytes_to(peer),
          .shared_pools = views && network_.transport(peer).pool_ != nullptr};
}

PeerPool SimTransport::pool_of(int peer) const {
  const MemoryPool& pool = *network_.transport(peer).pool_;
  return {pool.base(), pool.view(), pool.size(), pool.mapping()};
}

void SimTransport::fail(int peer) {
  Peer& gone = peers_[peer];
  if (gone.dropped) return;
  const bool was_connected = gone.connected || gone.wanted;
  gone = Peer{};
  gone.dropped = true;
  std::erase_if(flushing_, [peer](const auto& entry) { return entry.second.peer == peer; });
  std::erase_if(arrivals_, [peer](const Arrival& arrival) { return arrival.peer == peer; });
  if (!was_connected || network_.is_dead(rank_)) return;
  network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::last,
                [this, peer] { other(peer).lose(rank_, "closed its connection (process ended)"); });
}

void SimTransport::lose(int peer, const std::string& cause) {
  Peer& lost = peers_[peer];
  if (lost.dropped || network_.is_dead(rank_)) return;
  if (!lost.connected && !lost.wanted) return;
  if (lost.flushing > 0) {  // data that has arrived comes before the end
    lost.cause = cause;
    return;
  }
  lost = Peer{};
  lost.dropped = true;
  arrive({.kind = Arrival::Kind::failed, .peer = peer, .cause = cause});
}

// ---- posting ----

Status SimTransport::post_control(int peer, std::span<const std::byte> message) {
  if (peers_[peer].dropped) return {};
  if (!peers_[peer].connected || refuses()) return Status::busy();
  ++counters_.control_messages;
  SimMessage word = network_.note(rank_, peer, message);
  network_.send(rank_, peer, kHeaderBytes + word.message.size(), SimNetwork::Order::ordered,
                [this, peer, word = std::move(word)]() mutable {
                  SimTransport& to = other(peer);
                  if (to.peers_[word.from].dropped) return;
                  to.arrive({.kind = Arrival::Kind::control,
                             .peer = word.from,
                             .message = std::move(word.message)});
                });
  return {};
}

// Returns false if there is no connection for the message.
bool SimTransport::hear_late(int peer, const std::vector<std::byte>& message) {
  if (!is_connected(peer)) return false;
  arrive({.kind = Arrival::Kind::control, .peer = peer, .message = message});
  return true;
}

Status SimTransport::post_send(const Transfer& transfer) {
  Peer& peer = peers_[transfer.peer];
  if (peer.dropped) return {};
  if (!peer.connected || refuses()) return Status::busy();
  const Key key{transfer.lane, transfer.sequence};
  if (is_eager(transfer)) {
    send_eagerly(transfer, key);
    return {};
  }
  check_memory(transfer);
  const bool fresh =
      peer.sends.emplace(key, Posted{copy_of(transfer.pieces), transfer.cookie, hold(transfer)})
          .second;
  RC_ASSERT(fresh, cat("rank ", rank_, " sends (", int{key.first}, ", ", key.second, ") twice"));
  try_transfer(transfer.peer, key);
  return {};
}

Status SimTransport::post_recv(const Transfer& transfer) {
  const int peer = transfer.peer;
  if (peers_[peer].dropped) return {};
  if (!peers_[peer].connected || refuses()) return Status::busy();
  const Key key{transfer.lane, transfer.sequence};
  const bool fresh =
      peers_[peer]
          .receives.emplace(key, Posted{copy_of(transfer.pieces), transfer.cookie, hold(transfer)})
          .second;
  RC_ASSERT(fresh, cat("rank ", rank_, " receives (", int{key.first}, ", ", key.second, ") twice"));
  if (is_eager(transfer)) {
    const auto early = peers_[peer].early.extract(key);
    if (!early.empty()) receive_eagerly(peer, key, early.mapped());
    return {};
  }
  check_memory(transfer);
  network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::free, [this, peer, key] {
    if (other(peer).peers_[rank_].dropped) return;
    other(peer).peers_[rank_].grants.emplace(key, true);
    other(peer).try_transfer(rank_, key);
  });
  return {};
}

// ---- views ----

Status SimTransport::publish(const Transfer& transfer) {
  const int peer = transfer.peer;
  if (peers_[peer].dropped) return {};
  if (!peers_[peer].connected || refuses()) return Status::busy();
  const Key key{transfer.lane, transfer.sequence};
  const bool fresh =
      peers_[peer]
          .publications.emplace(key, Posted{copy_of(transfer.pieces), transfer.cookie})
          .second;
  RC_ASSERT(fresh,
            cat("rank ", rank_, " publishes (", int{key.first}, ", ", key.second, ") twice"));
  counters_.bytes_sent += total_bytes(transfer.pieces);
  std::vector<RemotePiece> pieces;
  for (const Piece& piece : transfer.pieces) {
    pieces.push_back({network_.policy().mapped ? piece.data : nullptr,
                      reinterpret_cast<uint64_t>(piece.data), piece.bytes, piece.gpu});
  }
  network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::free, [this, peer, key, pieces] {
    Peer& from = other(peer).peers_[rank_];
    if (from.dropped) return;
    from.views.emplace(key, Published{pieces});
    other(peer).try_view(rank_, key);
  });
  return {};
}

Status SimTransport::await(int peer, Lane lane, uint64_t sequence, uint64_t cookie) {
  if (peers_[peer].dropped) return {};
  if (!peers_[peer].connected || refuses()) return Status::busy();
  peers_[peer].awaits.emplace(Key{lane, sequence}, cookie);
  try_view(peer, {lane, sequence});
  return {};
}

void SimTransport::try_view(int peer, Key key) {
  const auto view = peers_[peer].views.find(key);
  const auto wait = peers_[peer].awaits.find(key);
  if (view == peers_[peer].views.end() || wait == peers_[peer].awaits.end()) return;
  view->second.awaited = true;
  arrive({.kind = Arrival::Kind::viewed, .peer = peer, .cookie = wait->second, .key = key});
  peers_[peer].awaits.erase(wait);
}

Status SimTransport::release(int peer, Lane lane, uint64_t sequence) {
  if (peers_[peer].dropped) return {};
  if (refuses()) return Status::busy();
  const Key key{lane, sequence};
  const auto view = peers_[peer].views.find(key);
  RC_ASSERT(
      view != peers_[peer].views.end() && view->second.awaited,
      cat("rank ", rank_, " releases a view that it has not seen: ", int{lane}, ", ", sequence));
  for (const RemotePiece& piece : view->second.pieces) counters_.bytes_received += piece.bytes;
  peers_[peer].views.erase(view);
  network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::free, [this, peer, key] {
    auto& publications = other(peer).peers_[rank_].publications;
    const auto publication = publications.find(key);
    if (publication == publications.end()) return;  // the publisher has dropped us
    other(peer).arrive(
        {.kind = Arrival::Kind::sent, .peer = rank_, .cookie = publication->second.cookie});
    publications.erase(publication);
  });
  return {};
}

// ---- polling and sleeping ----

void SimTransport::arrive(Arrival arrival) {
  if (network_.is_dead(rank_)) return;
  arrivals_.push_back(std::move(arrival));
  ring();
}

void SimTransport::ring() {
  armed_ = false;  // as the doorbell does
  network_.wake(rank_);
}

bool SimTransport::poll(Sink& sink) {
  armed_ = false;
  const Nanoseconds now = network_.clock().now();
  if (now - polled_at_ > network_.policy().peer_timeout / 2) {
    std::fill(silence_from_.begin(), silence_from_.end(), now);  // this rank's own loop was late
  }
  polled_at_ = now;
  if (gpus_ != nullptr) gpus_->push();
  const bool any = !arrivals_.empty();
  for (std::size_t left = arrivals_.size(); left > 0; --left) {
    const Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    switch (arrival.kind) {
      case Arrival::Kind::connected:
        sink.connected(arrival.peer);
        break;
      case Arrival::Kind::sent:
        sink.sent(arrival.cookie);
        break;
      case Arrival::Kind::received:
        sink.received(arrival.cookie);
        break;
      case Arrival::Kind::control:
        sink.control(arrival.peer, arrival.message);
        break;
      case Arrival::Kind::offered:
        offered(arrival.peer, arrival.slab, sink);
        break;
      case Arrival::Kind::answered:
        answered(arrival, sink);
        break;
      case Arrival::Kind::failed:
        sink.peer_failed(arrival.peer, arrival.cause);
        break;
      case Arrival::Kind::viewed: {
        const auto view = peers_[arrival.peer].views.find(arrival.key);
        if (view == peers_[arrival.peer].views.end()) break;  // the peer is gone
        const bool is_mapped =
            locate_on_gpus(arrival.peer, view->second.pieces) || network_.policy().mapped;
        sink.viewed(arrival.cookie, {view->second.pieces, is_mapped ? nullptr : &reader_});
        break;
      }
    }
  }
  look_for_silence(sink);
  return any;
}

// A peer that is no longer stepped sends no heartbeat: it is stopped.
void SimTransport::look_for_silence(Sink& sink) {
  const Nanoseconds now = polled_at_;
  if (now - silence_checked_at_ < network_.policy().peer_timeout / 100) return;
  silence_checked_at_ = now;
  for (int peer = 0; peer < network_.ranks(); ++peer) {
    if (peer == rank_ || !peers_.is_wanted(peer) || network_.is_dead(peer)) continue;
    const Nanoseconds spoke = network_.last_heard(peer, rank_, other(peer).polled_at_);
    // A peer is unheard until it has answered.
    const Nanoseconds heard =
        is_connected(peer) ? std::max(spoke, silence_from_[peer]) : silence_from_[peer];
    if (now - heard <= network_.policy().peer_timeout) continue;
    std::erase_if(flushing_, [peer](const auto& entry) { return entry.second.peer == peer; });
    peers_[peer] = Peer{};
    peers_[peer].dropped = true;
    sink.peer_failed(peer, cat("silent for ", (now - heard) / kMillisecond, " ms"));
    network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::last,
                  [this, peer] { other(peer).lose(rank_, "closed its connection"); });
  }
}

bool SimTransport::arm() {
  if (!arrivals_.empty() || (gpus_ != nullptr && gpus_->needs_push())) return false;
  armed_ = true;
  return true;
}

Nanoseconds SimTransport::next_deadline() const {
  return polled_at_ + network_.policy().peer_timeout / 5;
}

}  // namespace rdmacoll
