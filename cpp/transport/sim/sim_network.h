// A network in one process, under a virtual clock and a policy. The policy gives the time of every
// message, and the times of refusals, breaks and deaths. One seed gives one order of events.
//
// There are two policies of delivery. In chaos each message takes a random time. With a model of
// links, a message occupies processors and ports as in the cost model (collectives/cost.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/link_ports.h"

namespace rdmacoll {

class SimTransport;

class SimClock final : public Clock {
 public:
  Nanoseconds now() const override { return now_; }
  void advance_to(Nanoseconds time) { now_ = time > now_ ? time : now_; }

 private:
  Nanoseconds now_ = kSecond;
};

// A control message, and the time of its sending since the network's start.
struct SimMessage {
  Nanoseconds after = 0;
  int from = -1, to = -1;
  std::vector<std::byte> message;
};

struct SimPolicy {
  uint64_t seed = 1;
  // Chaos: each message takes a uniformly random time between these.
  Nanoseconds delay_min = 1 * kMicrosecond;
  Nanoseconds delay_max = 50 * kMicrosecond;
  int control_delays = 1;          // delays that a control message takes; data may overtake it
  std::optional<LinkModel> links;  // instead of chaos
  bool moves_bytes = true;         // false: transfers have no contents (needs `links`)
  double busy = 0;                 // share of posts that are refused
  double rewrites = 0;             // share of transfers that access their memory more than once
  bool views = true;               // publish and await
  int node_ranks = 0;  // this many consecutive ranks are a node, and views work in a node; 0: all
                       // ranks are
  bool foreign_views = true;
  bool mapped = true;           // views name memory that can be read directly, without a reader
  bool pool_alone = false;      // transfers between nodes use only pool memory, as with a device
  std::size_t eager_bytes = 0;  // transfers up to this size are copied at their post; with links,
                                // only between nodes
  Nanoseconds peer_timeout = 5 * kSecond;
  // Changes a sent control message, or its sender. Used by tests of the gate.
  std::function<void(SimMessage&)> tamper = {};

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
  bool chance(double share) {
    return share > 0 && static_cast<double>(random_() >> 11) * 0x1p-53 < share;
  }

  // Delivers the next message if it is due by `limit`, and moves the clock to it. Returns false if
  // there is none.
  bool step(Nanoseconds limit = kNever);
  Nanoseconds next_event() const { return events_.empty() ? kNever : events_.front().time; }

  // The process dies: none of its later messages is delivered, and its peers hear of its end.
  void kill(int rank);
  bool is_dead(int rank) const { return dead_[rank]; }
  // Breaks the connection of two living ranks and drops its messages in flight. Both ranks hear of
  // it. Returns false if there is no connection.
  bool cut(int a, int b);
  // Drops all further messages from this rank and to it, without a report.
  void unplug(int rank);
  // Returns when `listener` last heard of a rank that sends a heartbeat at every poll.
  Nanoseconds last_heard(int rank, int listener, Nanoseconds polled_at) const;

  // Copies each sent control message into `words`, which the caller owns.
  void keep_messages(std::vector<SimMessage>& words) { words_ = &words; }
  // Delivers a message of an earlier network at its time, if the connection stands then.
  void arrive_late(SimMessage word);
  bool has_come_late_from(int rank) const { return late_from_.contains(rank); }

  // Calls `event` at that time.
  void at(Nanoseconds time, std::function<void()> event) { push(time, -1, -1, std::move(event)); }

  // Returns false while the rank sleeps armed. A sleeper is stepped only after a wake-up.
  bool is_awake(int rank) const;

  // With links. A rank's processor does one task after another. Occupies it for `us` microseconds,
  // and returns the time of the end.
  Nanoseconds work(int rank, double us);
  Nanoseconds busy_until(int rank) const { return processors_[rank]; }
  // Takes a rank for which something has arrived since it was last taken, or returns -1.
  int take_woken();
  void wake(int rank);

 private:
  friend class SimTransport;
  using Delivery = std::function<void()>;
  struct Event {
    Nanoseconds time;
    uint64_t order;
    int from, to;  // -1: not between ranks, so that no break stops it
    Delivery deliver;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  // A `free` message may overtake and be overtaken. An `ordered` one comes after the ordered
  // messages of its pair. The `last` one comes after everything that its pair has sent, as the end
  // of a stream does.
  enum class Order : uint8_t { free, ordered, last };
  // With links: data of a pair is sent in its order. Ordered messages, and other pairs on the same
  // ports, go between two chunks of it, as frames and packets of streams do.
  struct Message {
    double posted_us;
    double bytes;  // bytes that have not left
    Delivery deliver, sent;
    double chunk = 0;
  };

  // Calls `deliver` at the far end when the message has arrived. With links, calls `sent` when the
  // sender may use its memory again.
  void send(int from, int to, std::size_t bytes, Order order, Delivery deliver, Delivery sent = {});
  void queue(int from, int to, Message message);
  void send_chunk(int from, int to);
  void end_chunk(int from, int to, double bytes);
  void take_over(int from, int to);
  // Sends through a port, and on to the next one. Calls `deliver`, if set, when the last byte is at
  // the far end. Returns when the bytes have left this port.
  double pass(int hop, int from, int to, double bytes, double time_us, Delivery deliver);
  void push(Nanoseconds time, int from, int to, Delivery deliver);
  Nanoseconds chaotic_delay();
  bool is_broken(int from, int to) const;
  // Keeps the sent message. The receiver gets the returned one.
  SimMessage note(int from, int to, std::span<const std::byte> message);

  SimPolicy policy_;
  std::vector<int> nodes_;
  SimClock clock_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<SimTransport>> transports_;
  std::vector<bool> dead_;
  std::vector<Event> events_;              // a heap, the next event first
  std::vector<Nanoseconds> last_ordered_;  // by pair, of chaos
  std::vector<Nanoseconds> last_arrival_;  // by pair, of chaos
  std::set<std::pair<int, int>> cut_;      // the smaller rank first
  int unplugged_ = -1;
  Nanoseconds unplugged_at_ = 0;
  std::vector<SimMessage>* words_ = nullptr;
  Nanoseconds began_ = clock_.now();
  std::set<int> late_from_;
  std::optional<LinkPorts> ports_;
  // With links: messages that have not left.
  std::map<std::pair<int, int>, std::vector<Message>> messages_;
  std::vector<Nanoseconds> processors_;  // by rank: the time until which it is busy
  std::vector<int> woken_;
  std::vector<bool> is_woken_;
  uint64_t events_sent_ = 0;
};

}  // namespace rdmacoll
