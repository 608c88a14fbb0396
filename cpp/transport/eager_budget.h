// How much a peer may be sent before it has posted the receives: it keeps that aside, so all of it
// is bounded. The receiver counts what its receives have claimed, and the sender hears the count.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rdmacoll {

// Of one peer. Many peers may do so at once.
inline constexpr std::size_t kEagerBytesOfPeer = 1024 * 1024;
inline constexpr std::size_t kEagerBytesOfAll = 64 * 1024 * 1024;

constexpr std::size_t eager_bytes_of_peer(int ranks) {
  return std::min(kEagerBytesOfPeer, kEagerBytesOfAll / static_cast<std::size_t>(ranks));
}

// A transfer counts for so much more than its bytes: what the receiver keeps beside them.
inline constexpr std::size_t kEagerTransferCost = 256;

constexpr std::size_t eager_cost(std::size_t bytes) { return bytes + kEagerTransferCost; }

// The sender's side. Totals only grow, so that a lost update repairs itself with the next one.
class EagerBudget {
 public:
  explicit EagerBudget(std::size_t most) : most_(most) {}

  bool allows(std::size_t bytes) const { return sent_ - claimed_ + eager_cost(bytes) <= most_; }
  // Also of a transfer whose receive is known to be posted, whatever is left.
  void spend(std::size_t bytes) { sent_ += eager_cost(bytes); }
  // False: more than was sent, or less than before.
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
