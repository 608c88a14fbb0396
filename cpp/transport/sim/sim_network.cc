#include "transport/sim/sim_network.h"

#include <algorithm>

#include "transport/sim/sim_transport.h"

namespace rdmacoll {

SimNetwork::SimNetwork(int ranks, const SimPolicy& policy)
    : policy_(policy),
      random_(policy.seed),
      dead_(ranks, false),
      last_ordered_(static_cast<std::size_t>(ranks) * ranks, 0),
      last_arrival_(static_cast<std::size_t>(ranks) * ranks, 0),
      link_free_(static_cast<std::size_t>(ranks) * ranks, 0) {
  for (int rank = 0; rank < ranks; ++rank) {
    transports_.push_back(std::make_unique<SimTransport>(*this, rank));
  }
}

SimNetwork::~SimNetwork() = default;

Nanoseconds SimNetwork::arrival(int from, int to, std::size_t bytes) {
  if (policy_.bytes_per_us > 0) {
    Nanoseconds& free = link_free_[static_cast<std::size_t>(from) * dead_.size() + to];
    const auto transfer =
        static_cast<Nanoseconds>(static_cast<double>(bytes) / policy_.bytes_per_us * kMicrosecond);
    free = std::max(free, clock_.now()) + transfer;
    return free + policy_.latency;
  }
  std::uniform_int_distribution<Nanoseconds> delay(policy_.delay_min, policy_.delay_max);
  return clock_.now() + delay(random_);
}

void SimNetwork::send(int from, int to, std::size_t bytes, Order order,
                      std::function<void()> deliver) {
  Nanoseconds time = arrival(from, to, bytes);
  const std::size_t pair = static_cast<std::size_t>(from) * dead_.size() + to;
  if (order != Order::free) time = last_ordered_[pair] = std::max(time, last_ordered_[pair] + 1);
  if (order == Order::last) time = std::max(time, last_arrival_[pair] + 1);
  last_arrival_[pair] = std::max(last_arrival_[pair], time);
  events_.push({time, events_sent_++, std::move(deliver)});
}

bool SimNetwork::step(Nanoseconds limit) {
  if (events_.empty() || events_.top().time > limit) return false;
  // A copy of the function: delivering may send more.
  const Event event = events_.top();
  events_.pop();
  clock_.advance_to(event.time);
  event.deliver();
  return true;
}

void SimNetwork::kill(int rank) {
  dead_[rank] = true;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank || dead_[peer]) continue;
    // What it had sent before may still arrive; the end of its connection comes behind that.
    send(rank, peer, 0, Order::last, [this, rank, peer] {
      transports_[peer]->lose(rank, "closed its connection (process ended)");
    });
  }
}

bool SimNetwork::is_awake(int rank) const { return transports_[rank]->is_awake(); }

}  // namespace rdmacoll
