// A network in one process, under a virtual clock and a seeded policy: every message takes as long
// as the policy says, refusals and deaths come when it says so. One seed is one order of events.
//
// Two policies of delay: chaos (uniform between two bounds) and a link model (latency, and a
// bandwidth that messages of one direction of a pair share one after the other).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <vector>

#include "base/clock.h"

namespace rdmacoll {

class SimTransport;

class SimClock final : public Clock {
 public:
  Nanoseconds now() const override { return now_; }
  void advance_to(Nanoseconds time) { now_ = time > now_ ? time : now_; }

 private:
  Nanoseconds now_ = kSecond;
};

struct SimPolicy {
  uint64_t seed = 1;
  // Chaos: each message is under way for a uniform time between these.
  Nanoseconds delay_min = 1 * kMicrosecond;
  Nanoseconds delay_max = 50 * kMicrosecond;
  // Link model, when bytes_per_us > 0: latency + bytes / bandwidth, queued behind earlier ones.
  double bytes_per_us = 0;
  Nanoseconds latency = 0;
  double busy = 0;     // share of posts that are refused
  bool views = true;   // publish and await
  int node_ranks = 0;  // so many neighbours are a node, which views are for; 0: all are
  bool foreign_views = true;
  bool mapped = true;  // views name memory that can be read directly, not through a reader
  Nanoseconds peer_timeout = 5 * kSecond;

  int node_of(int rank) const { return node_ranks == 0 ? 0 : rank / node_ranks; }
};

class SimNetwork {
 public:
  SimNetwork(int ranks, const SimPolicy& policy);
  ~SimNetwork();

  SimTransport& transport(int rank) { return *transports_[rank]; }
  SimClock& clock() { return clock_; }
  const SimClock& clock() const { return clock_; }
  const SimPolicy& policy() const { return policy_; }
  int ranks() const { return static_cast<int>(dead_.size()); }
  std::mt19937_64& random() { return random_; }
  bool chance(double share) { return std::uniform_real_distribution<>(0, 1)(random_) < share; }

  // Delivers the next message, if it is due until `limit`, and moves the clock to it. False: none.
  bool step(Nanoseconds limit = kNever);
  Nanoseconds next_event() const { return events_.empty() ? kNever : events_.top().time; }

  // The process dies: nothing of it is delivered any more, and its peers hear of it in time.
  void kill(int rank);
  bool is_dead(int rank) const { return dead_[rank]; }
  // How often it was told to wake while it slept armed; a sleeper is only stepped then.
  bool is_awake(int rank) const;

 private:
  friend class SimTransport;
  struct Event {
    Nanoseconds time;
    uint64_t order;
    std::function<void()> deliver;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  // free: overtakes and is overtaken. ordered: behind the ordered messages of its pair. last:
  // behind everything that its pair has sent, as the end of a stream is.
  enum class Order : uint8_t { free, ordered, last };
  // Runs `deliver` at the far end when the message has arrived.
  void send(int from, int to, std::size_t bytes, Order order, std::function<void()> deliver);
  Nanoseconds arrival(int from, int to, std::size_t bytes);

  SimPolicy policy_;
  SimClock clock_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<SimTransport>> transports_;
  std::vector<bool> dead_;
  std::priority_queue<Event> events_;
  std::vector<Nanoseconds> last_ordered_;  // by pair
  std::vector<Nanoseconds> last_arrival_;  // by pair
  std::vector<Nanoseconds> link_free_;     // by pair
  uint64_t events_sent_ = 0;
};

}  // namespace rdmacoll
