// Limits the transfers that a peer may be sent before it has posted their receives. The receiver
// keeps such transfers in memory of its own, so their total is bounded. The receiver counts the
// eager bytes that its receives have claimed, and reports the count to the sender.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rdmacoll {

// The limit for one peer, and the limit for all peers together, since many peers may send at once.
inline constexpr std::size_t kEagerBytesOfPeer = 1024 * 1024;
inline constexpr std::size_t kEagerBytesOfAll = 64 * 1024 * 1024;

constexpr std::size_t eager_bytes_of_peer(int ranks) {
  return std::min(kEagerBytesOfPeer, kEagerBytesOfAll / static_cast<std::size_t>(ranks));
}

// Bookkeeping bytes that the receiver keeps for each transfer, counted beside the transfer's bytes.
inline constexpr std::size_t kEagerTransferCost = 256;

constexpr std::size_t eager_cost(std::size_t bytes) { return bytes + kEagerTransferCost; }

// The sender's side. Totals only grow, so a later update replaces a lost one.
class EagerBudget {
 public:
  explicit EagerBudget(std::size_t most) : most_(most) {}

  bool allows(std::size_t bytes) const { return sent_ - claimed_ + eager_cost(bytes) <= most_; }
  // Call also for a transfer whose receive is known to be posted, even when the budget is used up.
  void spend(std::size_t bytes) { sent_ += eager_cost(bytes); }
  // Returns false if the count exceeds the bytes sent, or is less than the previous count.
  bool hear(uint64_t claimed) {
    if (claimed < claimed_ || claimed > sent_) return false;
    claimed_ = claimed;
    return true;
  }
  void clear() { sent_ = claimed_ = 0; }

 private:
  std::size_t most_;
  uint64_t sent_ = 0;
  uint64_t claimed_ = 0;
};

}  // namespace rdmacoll
