// Moves the bytes of transfers between the ranks' memories.
#include <algorithm>
#include <cstring>

#include "base/small_range.h"
#include "base/text.h"
#include "transport/sim/sim_transport.h"

namespace rdmacoll {

// ---- memory ----

// NICs read memory of GPUs by its registration, and processors cannot.
std::vector<std::byte> SimTransport::gathered(const Posted& from) const {
  std::vector<std::byte> bytes(total_bytes(from.pieces));
  std::byte* into = bytes.data();
  for (const Piece& piece : from.pieces) {
    if (piece.gpu != kHost) {
      from.hold->read(piece, into);
    } else if (piece.bytes > 0) {
      std::memcpy(into, piece.data, piece.bytes);
    }
    into += piece.bytes;
  }
  return bytes;
}

// A peer that is wrong about the decision may send fewer bytes, or more.
void SimTransport::scatter(const std::vector<std::byte>& bytes, const Posted& to) const {
  const std::byte* from = bytes.data();
  std::size_t left = bytes.size();
  for (Piece piece : to.pieces) {
    piece.bytes = std::min(piece.bytes, left);
    left -= piece.bytes;
    if (piece.gpu != kHost) {
      to.hold->write(piece, from);
    } else if (piece.bytes > 0) {
      std::memcpy(piece.data, from, piece.bytes);
    }
    from += piece.bytes;
  }
}

std::shared_ptr<const SimGpuAccess::Hold> SimTransport::hold(const Transfer& transfer) {
  const auto is_on_gpu = [](const Piece& piece) { return piece.gpu != kHost; };
  if (!is_any_of(transfer.pieces, is_on_gpu)) return nullptr;
  RC_ASSERT(gpus_ != nullptr && !is_eager(transfer), "a processor would move memory of a GPU");
  return gpus_->hold(transfer.pieces);
}

bool SimTransport::pin(const Piece& memory) {
  return gpus_ != nullptr && memory.gpu != kHost && gpus_->pin(memory);
}

void SimTransport::unpin(const Piece& memory) { gpus_->unpin(memory); }

bool SimTransport::is_pinned(const Piece& memory) const {
  return gpus_ != nullptr && memory.gpu != kHost && gpus_->is_pinned(memory);
}

GpuWays SimTransport::gpu_ways(Gpu gpu) const {
  return gpus_ == nullptr ? GpuWays{} : gpus_->ways(gpu);
}

// Reports the transfer once kernels see what the NIC has written.
void SimTransport::flush(int peer, Posted received) {
  const uint64_t number = next_flushing_++;
  Flushing& flushing = flushing_[number];
  flushing = {.peer = peer, .posted = std::move(received)};
  ++peers_[peer].flushing;
  std::vector<Piece> written;  // one of each GPU
  for (const Piece& piece : flushing.posted.pieces) {
    const auto is_same = [&](const Piece& other) { return other.gpu == piece.gpu; };
    if (piece.gpu == kHost || piece.bytes == 0 || is_any_of(written, is_same)) continue;
    written.push_back(piece);
  }
  flushing.flushes = static_cast<int>(written.size());
  for (const Piece& piece : written) {
    gpus_->flush(piece, [this, number](const std::string& fault) { end_flush(number, fault); });
  }
}

void SimTransport::end_flush(uint64_t number, const std::string& fault) {
  const auto found = flushing_.find(number);
  if (found == flushing_.end()) return;  // the peer is gone
  const int peer = found->second.peer;
  if (!fault.empty()) {
    fail(peer);
    return arrive({.kind = Arrival::Kind::failed, .peer = peer, .cause = fault});
  }
  if (--found->second.flushes > 0) return;
  arrive({.kind = Arrival::Kind::received, .peer = peer, .cookie = found->second.posted.cookie});
  flushing_.erase(found);
  Peer& from = peers_[peer];
  if (--from.flushing == 0 && !from.cause.empty()) lose(peer, std::string(from.cause));
}

// ---- transfers ----

std::size_t SimTransport::eager_bytes_to(int peer) const {
  const SimPolicy& policy = network_.policy();
  const bool is_near = policy.links && policy.node_of(peer) == policy.node_of(rank_);
  return is_near ? 0 : policy.eager_bytes;
}

bool SimTransport::is_eager(const Transfer& transfer) const {
  const std::size_t limit = eager_bytes_to(transfer.peer);
  return limit > 0 && total_bytes(transfer.pieces) <= limit;
}

void SimTransport::check_memory(const Transfer& transfer) const {
  const SimPolicy& policy = network_.policy();
  if (pool_ == nullptr || !policy.pool_alone ||
      policy.node_of(transfer.peer) == policy.node_of(rank_))
    return;
  for (const Piece& piece : transfer.pieces) {
    RC_ASSERT(piece.bytes == 0 || is_pinned(piece) || pool_->contains(piece.data, piece.bytes),
              cat("rank ", rank_, " and rank ", transfer.peer, " use memory outside the pool"));
  }
}

void SimTransport::send_eagerly(const Transfer& transfer, Key key) {
  const int peer = transfer.peer;
  std::vector<std::byte> bytes;
  if (network_.policy().moves_bytes)
    bytes = gathered({{transfer.pieces.begin(), transfer.pieces.end()}, transfer.cookie});
  counters_.bytes_sent += total_bytes(transfer.pieces);
  network_.send(rank_, peer, kHeaderBytes + total_bytes(transfer.pieces), SimNetwork::Order::free,
                [this, peer, key, bytes = std::move(bytes)] {
                  other(peer).receive_eagerly(rank_, key, bytes);
                });
  if (transfer.is_done != nullptr) {
    *transfer.is_done = true;
  } else {
    arrive({.kind = Arrival::Kind::sent, .peer = peer, .cookie = transfer.cookie});
  }
}

void SimTransport::receive_eagerly(int peer, Key key, const std::vector<std::byte>& bytes) {
  Peer& from = peers_[peer];
  if (from.dropped) return;
  const auto receiving = from.receives.find(key);
  if (receiving == from.receives.end()) {
    from.early.emplace(key, bytes);
    return;
  }
  if (network_.policy().moves_bytes) scatter(bytes, receiving->second);
  counters_.bytes_received += total_bytes(receiving->second.pieces);
  arrive({.kind = Arrival::Kind::received, .peer = peer, .cookie = receiving->second.cookie});
  from.receives.erase(receiving);
}

void SimTransport::try_transfer(int peer, Key key) {
  const auto send = peers_[peer].sends.find(key);
  if (send == peers_[peer].sends.end() || peers_[peer].grants.erase(key) == 0) return;
  if (network_.policy().links) return deliver_over_links(peer, key);
  const std::size_t bytes = total_bytes(send->second.pieces);
  const auto arrival = [this, peer, key] { deliver(peer, key); };
  network_.send(rank_, peer, kHeaderBytes + bytes, SimNetwork::Order::free, arrival);
  if (!network_.chance(network_.policy().rewrites)) return;
  // Both memories may be accessed repeatedly until the completions. Data is sent again after a lost
  // acknowledgement, and places are written piece by piece.
  const auto touch = [this, peer, key] {
    const auto sending = peers_[peer].sends.find(key);
    const auto receiving = other(peer).peers_[rank_].receives.find(key);
    const bool both = !network_.is_dead(rank_) && sending != peers_[peer].sends.end() &&
                      receiving != other(peer).peers_[rank_].receives.end();
    if (both) other(peer).scatter(gathered(sending->second), receiving->second);
  };
  network_.send(rank_, peer, kHeaderBytes + bytes, SimNetwork::Order::free, touch);
}

// The bytes leave the sender's memory at some time between grant and completion. They enter the
// receiver's memory at any time after its post. So early reuse of either memory shows as a wrong
// sum.
void SimTransport::deliver(int peer, Key key) {
  if (network_.is_dead(rank_)) return;  // the memory is gone with the process
  SimTransport& to = other(peer);
  const auto sending = peers_[peer].sends.find(key);
  const auto receiving = to.peers_[rank_].receives.find(key);
  if (sending == peers_[peer].sends.end() || receiving == to.peers_[rank_].receives.end()) return;
  const std::size_t bytes = total_bytes(sending->second.pieces);
  const std::size_t expected = total_bytes(receiving->second.pieces);
  if (bytes != expected && network_.policy().tamper) {  // ranks received different sizes
    const std::string cause = cat("sent ", bytes, " bytes where ", expected, " were expected");
    to.lose(rank_, cause);
    return lose(peer, cause);
  }
  RC_ASSERT(expected == bytes, cat("rank ", rank_, " sends ", bytes, " bytes to rank ", peer,
                                   ", which expects ", expected));
  to.scatter(gathered(sending->second), receiving->second);
  counters_.bytes_sent += bytes;
  to.counters_.bytes_received += bytes;
  arrive({.kind = Arrival::Kind::sent, .peer = peer, .cookie = sending->second.cookie});
  for (const Piece& piece : sending->second.pieces) {
    if (piece.gpu != kHost) counters_.gpu_bytes_sent += piece.bytes;
  }
  for (const Piece& piece : receiving->second.pieces) {
    if (piece.gpu != kHost) to.counters_.gpu_bytes_received += piece.bytes;
  }
  peers_[peer].sends.erase(sending);
  Posted received = std::move(receiving->second);
  to.peers_[rank_].receives.erase(receiving);
  if (received.hold != nullptr) return to.flush(rank_, std::move(received));
  to.arrive({.kind = Arrival::Kind::received, .peer = rank_, .cookie = received.cookie});
}

// The sender gets its memory back when the last byte has left its port, or its socket has taken it.
void SimTransport::deliver_over_links(int peer, Key key) {
  const auto sending = peers_[peer].sends.extract(key);
  const std::vector<Piece>& pieces = sending.mapped().pieces;
  const std::size_t size = total_bytes(pieces);
  std::vector<std::byte> bytes;
  if (network_.policy().moves_bytes) bytes = gathered(sending.mapped());
  counters_.bytes_sent += size;
  network_.send(
      rank_, peer, kHeaderBytes + size, SimNetwork::Order::free,
      [this, peer, key, bytes = std::move(bytes)] {
        other(peer).receive_eagerly(rank_, key, bytes);
      },
      [this, peer, cookie = sending.mapped().cookie] {
        arrive({.kind = Arrival::Kind::sent, .peer = peer, .cookie = cookie});
      });
}

}  // namespace rdmacoll
