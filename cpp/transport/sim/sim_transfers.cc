// Moves the bytes of transfers between the ranks' memories.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "transport/sim/sim_transport.h"

namespace rdmacoll {
namespace {

// Copies between two lists of pieces with different boundaries. Returns the bytes copied.
std::size_t copy_pieces(const std::vector<Piece>& from, const std::vector<Piece>& to) {
  std::size_t i = 0, j = 0, skip_from = 0, skip_to = 0, copied = 0;
  while (i < from.size() && j < to.size()) {
    const std::size_t bytes = std::min(from[i].bytes - skip_from, to[j].bytes - skip_to);
    if (bytes > 0) std::memcpy(to[j].data + skip_to, from[i].data + skip_from, bytes);
    copied += bytes;
    if ((skip_from += bytes) == from[i].bytes) ++i, skip_from = 0;
    if ((skip_to += bytes) == to[j].bytes) ++j, skip_to = 0;
  }
  return copied;
}

std::vector<std::byte> gathered(const std::vector<Piece>& pieces) {
  std::vector<std::byte> bytes(total_bytes(pieces));
  copy_pieces(pieces, {{bytes.data(), bytes.size()}});
  return bytes;
}
void scatter(const std::vector<std::byte>& bytes, const std::vector<Piece>& pieces) {
  copy_pieces({{const_cast<std::byte*>(bytes.data()), bytes.size()}}, pieces);
}

}  // namespace

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
    RC_ASSERT(piece.bytes == 0 || pool_->contains(piece.data, piece.bytes),
              cat("rank ", rank_, " and rank ", transfer.peer, " use memory outside the pool"));
  }
}

void SimTransport::send_eagerly(const Transfer& transfer, Key key) {
  const int peer = transfer.peer;
  std::vector<std::byte> bytes;
  if (network_.policy().moves_bytes)
    bytes = gathered({transfer.pieces.begin(), transfer.pieces.end()});
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
  if (network_.policy().moves_bytes) scatter(bytes, receiving->second.pieces);
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
    if (both) copy_pieces(sending->second.pieces, receiving->second.pieces);
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
  const std::size_t copied = copy_pieces(sending->second.pieces, receiving->second.pieces);
  RC_ASSERT(
      copied == bytes && expected == bytes,
      cat("rank ", rank_, " sends ", bytes, " bytes to rank ", peer, ", which expects ", expected));
  counters_.bytes_sent += bytes;
  to.counters_.bytes_received += bytes;
  arrive({.kind = Arrival::Kind::sent, .peer = peer, .cookie = sending->second.cookie});
  to.arrive({.kind = Arrival::Kind::received, .peer = rank_, .cookie = receiving->second.cookie});
  peers_[peer].sends.erase(sending);
  to.peers_[rank_].receives.erase(receiving);
}

// The sender gets its memory back when the last byte has left its port, or its socket has taken it.
void SimTransport::deliver_over_links(int peer, Key key) {
  const auto sending = peers_[peer].sends.extract(key);
  const std::vector<Piece>& pieces = sending.mapped().pieces;
  const std::size_t size = total_bytes(pieces);
  std::vector<std::byte> bytes;
  if (network_.policy().moves_bytes) bytes = gathered(pieces);
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
