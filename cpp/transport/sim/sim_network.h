// A network in one process, under a virtual clock and a policy: every message takes as long as the
// policy says, refusals, breaks and deaths come when it says so. One seed is one order of events.
//
// Two policies of delivery: chaos, where each message is under way for a random time, and a model
// of links, where it takes processors and ports as in the cost model (collectives/cost.h).
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

// A control message that was sent so long after its network had begun.
struct SimWord {
  Nanoseconds after = 0;
  int from = -1, to = -1;
  std::vector<std::byte> message;
};

struct SimPolicy {
  uint64_t seed = 1;
  // Chaos: each message is under way for a uniform time between these.
  Nanoseconds delay_min = 1 * kMicrosecond;
  Nanoseconds delay_max = 50 * kMicrosecond;
  int control_delays = 1;  // ... a control message for so many of them: data may overtake it
  std::optional<LinkModel> links;  // instead of chaos
  bool moves_bytes = true;         // false, with links: transfers have a size and no content
  double busy = 0;                 // share of posts that are refused
  double rewrites = 0;  // share of transfers that read and write their memory more than once
  bool views = true;    // publish and await
  int node_ranks = 0;   // so many neighbours are a node, which views are for; 0: all are
  bool foreign_views = true;
  bool mapped = true;           // views name memory that can be read directly, not through a reader
  bool pool_alone = false;      // other transfers are of memory of the pool, as a device's are
  std::size_t eager_bytes = 0;  // transfers up to here are copied when they are posted; with links,
                                // those between nodes
  Nanoseconds peer_timeout = 5 * kSecond;
  // Changes a control message that is sent, or its sender: tests of the gate do.
  std::function<void(SimWord&)> tamper = {};

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

  // Delivers the next message, if it is due until `limit`, and moves the clock to it. False: none.
  bool step(Nanoseconds limit = kNever);
  Nanoseconds next_event() const { return events_.empty() ? kNever : events_.front().time; }

  // The process dies: nothing of it is delivered any more, and its peers hear of it in time.
  void kill(int rank);
  bool is_dead(int rank) const { return dead_[rank]; }
  // The connection of two living ranks breaks, with what is under way in it; both hear of it.
  // False: there is none.
  bool cut(int a, int b);
  // Nothing comes from this rank or to it any more, without a word.
  void unplug(int rank);
  // When others have last heard of a rank that speaks whenever it is polled.
  Nanoseconds last_heard(int rank, int listener, Nanoseconds polled_at) const;

  // Copies each control message that is sent into `words`, which stay the caller's.
  void keep_words(std::vector<SimWord>& words) { words_ = &words; }
  // One of an earlier network arrives at its time, where the connection stands then.
  void arrive_late(SimWord word);
  bool has_come_late_from(int rank) const { return late_from_.contains(rank); }

  // Something else happens at that time.
  void at(Nanoseconds time, std::function<void()> happening) {
    push(time, -1, -1, std::move(happening));
  }

  // How often it was told to wake while it slept armed; a sleeper is only stepped then.
  bool is_awake(int rank) const;

  // With links. A rank's processor does one thing after the other: it takes it for so long, and
  // this returns when that is over.
  Nanoseconds work(int rank, double us);
  Nanoseconds busy_until(int rank) const { return processors_[rank]; }
  // A rank that something has come for since it was taken last, or -1.
  int take_woken();
  void wake(int rank);

 private:
  friend class SimTransport;
  using Delivery = std::function<void()>;
  struct Event {
    Nanoseconds time;
    uint64_t order;
    int from, to;  // -1: between nobody, so that nothing stops it
    Delivery deliver;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  // free: overtakes and is overtaken. ordered: behind the ordered messages of its pair. last:
  // behind everything that its pair has sent, as the end of a stream is.
  enum class Order : uint8_t { free, ordered, last };
  // With links: what a pair has to send goes in its order, and what is ordered, and others that use
  // the same ports, between two chunks of it, as frames and packets of streams do.
  struct Message {
    double posted_us;
    double bytes;  // that have not left
    Delivery deliver, sent;
    double chunk = 0;
  };

  // Runs `deliver` at the far end when the message has arrived; with links `sent` when its sender
  // may use its memory again.
  void send(int from, int to, std::size_t bytes, Order order, Delivery deliver, Delivery sent = {});
  void queue(int from, int to, Message message);
  void send_chunk(int from, int to);
  void end_chunk(int from, int to, double bytes);
  void take_over(int from, int to);
  // Through a port, and on to the next one; `deliver`, if there is one, when the last byte is at
  // the far end. Returns when it has left this port.
  double pass(int hop, int from, int to, double bytes, double time_us, Delivery deliver);
  void push(Nanoseconds time, int from, int to, Delivery deliver);
  Nanoseconds chaotic_delay();
  bool is_broken(int from, int to) const;
  // Keeps the word that is sent; its receiver gets what this returns.
  SimWord note(int from, int to, std::span<const std::byte> message);

  SimPolicy policy_;
  std::vector<int> nodes_;
  SimClock clock_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<SimTransport>> transports_;
  std::vector<bool> dead_;
  std::vector<Event> events_;              // a heap, the next one in front
  std::vector<Nanoseconds> last_ordered_;  // by pair, of chaos
  std::vector<Nanoseconds> last_arrival_;  // by pair, of chaos
  std::set<std::pair<int, int>> cut_;      // the smaller rank first
  int unplugged_ = -1;
  Nanoseconds unplugged_at_ = 0;
  std::vector<SimWord>* words_ = nullptr;
  Nanoseconds began_ = clock_.now();
  std::set<int> late_from_;
  std::optional<LinkPorts> ports_;
  std::map<std::pair<int, int>, std::vector<Message>> messages_;  // with links: what has not left
  std::vector<Nanoseconds> processors_;                           // by rank: busy until then
  std::vector<int> woken_;
  std::vector<bool> is_woken_;
  uint64_t events_sent_ = 0;
};

}  // namespace rdmacoll
