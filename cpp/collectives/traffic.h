// The traffic of one segment among ranks of several nodes, and the time that it takes. A row tells
// the copies, sums and messages of its algorithm. They are timed by the link model that cost_of()
// has, but no schedule is made, and no hazards are searched. All times are in microseconds. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/choose.h"
#include "collectives/schedule.h"

namespace rdmacoll {

class Traffic {
 public:
  // `segment_bytes`: the length of a segment. The other arguments outlive this.
  Traffic(const LinkModel& links, const Facts& facts, AlgorithmRow::Result result,
          uint64_t segment_bytes);

  // Call it before anything else. `are_alike`: all nodes have the same traffic in this row, if each
  // has as many ranks, in order. The first node then stands for all, and calls for ranks of other
  // nodes do nothing.
  void nodes_are_alike(bool are_alike);

  int ranks() const { return facts_.ranks; }
  Shape shape() const { return {.ranks = facts_.ranks, .nodes = nodes_}; }
  int node_of(int rank) const { return nodes_.empty() ? rank : nodes_[rank]; }
  bool are_near(int a, int b) const { return node_of(a) == node_of(b); }
  double segment() const { return segment_; }
  double part() const { return segment_ / ranks(); }
  // The length of a sum of so much data. A partial sum of 16-bit floats is float32.
  double sum_bytes(double bytes, bool is_partial) const {
    return is_partial && facts_.wide_sums ? kWide * bytes : bytes;
  }

  // A rank does what follows one after the other, after it has all messages of earlier rounds. A
  // `count` stands for so many equal copies or messages.
  void copy(int rank, double bytes, double count = 1) { work(rank, copy_us(bytes, count)); }
  void sum(int rank, double bytes, int peers) {
    work(rank, links_.step_us + std::max(1, peers) * bytes / links_.reduce_bytes_per_us);
  }
  // Caller's memory goes to the pool, where a peer of the node or a NIC reads it.
  void pack(int rank, int peer, double bytes, double count = 1) {
    if (is_packed(rank, peer)) copy(rank, bytes, count);
  }
  // Tells messages of callers' memory, which do not wait for each other. each(visit) calls
  // visit(from, to, count) for each of them, and send(from, to, count) tells one. A message that
  // needs no copy goes at once, and the others go after all copies. meanwhile() tells other work
  // that waits for nothing.
  template <typename Each, typename Send, typename Meanwhile>
  void give(double bytes, Each each, Send send, Meanwhile meanwhile) {
    each([&](int from, int to, double count) {
      if (is_packed(from, to)) return copy(from, bytes, count);
      send(from, to, count);
    });
    meanwhile();
    each([&](int from, int to, double count) {
      if (is_packed(from, to)) send(from, to, count);
    });
  }
  // The same with a result. If a NIC moves results of this rank (`is_pinned`), they are in the
  // pool.
  void pack_result(int rank, int peer, double bytes, bool is_pinned) {
    if (are_near(rank, peer) && !(is_pinned && links_.via_nic)) copy(rank, bytes);
  }
  // Such a result goes to the caller's memory at last, and nothing waits for that.
  void unpack(int rank, double bytes, bool is_pinned = true) {
    if (!is_pinned || !links_.via_nic || rank >= told()) return;
    ++asides_[rank];
    busy_[rank].processor += copy_us(bytes, 1);
    add(rank, {Verb::aside, copy_us(bytes, 1)});
  }
  void send(int from, int to, double bytes, double count = 1) {
    post({from, to, bytes, count, Kind::sent, are_near(from, to)});
  }
  // The same. The data becomes a part of the receiver's result, which may be pinned.
  void move(int from, int to, double bytes, bool is_pinned = false, double count = 1) {
    const bool is_near = are_near(from, to);
    post({from, to, bytes, count, is_pinned || !is_near ? Kind::pinned : Kind::moved, is_near});
  }
  // The same. The receiver copies the data to its pool, to pass it on.
  void keep(int from, int to, double bytes) {
    post({from, to, bytes, 1, Kind::moved, are_near(from, to)});
  }
  // The end of a round. Receivers go on when they have its messages.
  void deliver();

  // Calls visit(from, to, count) for all pairs of ranks, the nearest first. In large worlds, some
  // pairs stand for `count` pairs each.
  template <typename Visit>
  void each_pair(Visit visit) {
    const int all = ranks() - 1;
    const int shown = std::min(all, rounds_most());
    for (int i = 0; i < shown; ++i) {
      const int distance = 1 + i * all / shown;
      for (int rank = 0; rank < told(); ++rank) {
        visit(rank, (rank + distance) % ranks(), static_cast<double>(all) / shown);
      }
    }
  }
  // Calls tell(part) for `count` parts of the work that are independent of each other. A rank
  // begins all its parts at the same time. It does what follows after all of them.
  template <typename Tell>
  void side_by_side(int count, Tell tell) {
    for (int part = 0; part < count; ++part) {
      is_in_part_ = true;
      tell(part);
      end_part();
    }
    join_parts();
  }

  // The rounds of a ring: send(round) tells the messages of a round, and take(round) tells what the
  // receivers do with them. A message of the next round waits for that alone. In large worlds, some
  // rounds are left out that are like the ones before, and their time is added.
  template <typename Send, typename Take>
  void ring_rounds(int rounds, Send send, Take take) {
    const int shown = std::min(rounds, rounds_most());
    const auto number = [&](int at) { return at < (shown + 1) / 2 ? at : rounds - (shown - at); };
    const Least before{busy_, longest()};
    side_by_side(shown + 1, [&](int part) {
      if (part > 0) {
        deliver();
        take(number(part - 1));
      }
      if (part < shown) send(number(part));
    });
    if (rounds > shown) leave_out(before, static_cast<double>(rounds - shown) / shown);
  }

  // A lower bound of time(), from what was told alone. A segment takes at least the longest chain
  // of its steps. Each processor and port does its work for all segments.
  double bound() const;
  // The time of all segments. Call it once.
  double time();
  uint64_t steps() const { return steps_.size(); }  // those that were told
  uint64_t events() const { return made_; }         // those of time()

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // In each round, each rank sends a message.
  int rounds_most() const { return std::max(8, (1 << 11) / ranks()); }

  enum class Kind : uint8_t { sent, moved, pinned };
  struct Message {
    int from = 0, to = 0;
    double bytes = 0, count = 1;
    Kind kind = Kind::sent;
    bool is_near = false;
    uint32_t awaited_by = 0;  // in awaits_
    double arrives = 0;       // at the earliest, as all times of what is told
  };
  enum class Verb : uint8_t { work, aside, post, await, begin };
  struct Step {
    Verb verb = Verb::work;
    double takes = 0;
    uint32_t index = 0;     // in messages_, awaits_ or strands_
    uint32_t next = kNone;  // step of the strand
  };
  struct Await {
    uint32_t strand = 0, missing = 0;
  };
  // Steps of a rank, one after the other. Each rank has one strand, and one for each of its parts.
  struct Strand {
    int rank = 0;
    uint32_t joined_by = 0;                // in awaits_, if this is a part
    uint32_t first = kNone, last = kNone;  // in steps_
    double ends = 0;
  };
  struct Busy {  // in one segment
    double processor = 0, out = 0, in = 0;
  };
  struct Least {
    std::vector<Busy> busy;
    double longest = 0;
  };
  struct Use {  // a processor or a port
    double free = 0;
    double take(double time, double takes);
  };
  struct Node {
    Use out, in;
  };
  struct Progress {         // a strand in one segment
    uint32_t next = kNone;  // in steps_
    bool waits = false;
  };
  struct Missing {  // an await in one segment
    uint32_t count = 0;
    double done = 0;
  };
  enum class EventKind : uint8_t { leave, enter, arrive, copy, go_on, aside };
  // Events at the same time go in the order of their kinds, segments and creation. All three are in
  // `order`, and the queue has the largest event on top.
  struct Event {
    double time = 0;
    uint64_t order = 0;
    uint32_t index = 0;  // in strands_, messages_ or to_do_aside_
    EventKind kind() const { return static_cast<EventKind>(order >> 60); }
    uint32_t segment() const { return static_cast<uint32_t>(order >> 56) & 15; }
    bool operator<(const Event& event) const {
      return time != event.time ? time > event.time : order > event.order;
    }
  };
  struct Aside {
    int rank = 0;
    double takes = 0;
  };

  bool is_packed(int rank, int peer) const { return links_.via_nic || are_near(rank, peer); }
  double copy_us(double bytes, double count) const {
    return count * (links_.step_us + bytes / links_.copy_bytes_per_us);
  }
  const Link& link(const Message& message) const {
    return message.is_near ? links_.node : links_.network;
  }
  int told() const { return told_; }  // the first so many ranks
  void begin(int told, int nodes);
  uint32_t strand_of(int rank);
  void end_part();
  void join_parts();
  Strand& add_to(uint32_t strand, const Step& step);
  Strand& add(int rank, const Step& step) { return add_to(strand_of(rank), step); }
  void work(int rank, double takes) {
    if (rank >= told()) return;
    add(rank, {Verb::work, takes}).ends += takes;
    busy_[rank].processor += takes;
  }
  void post(Message message);
  bool is_copied(const Message& message) const {
    return message.kind != Kind::sent && message.is_near;
  }
  // Whether the data comes to the pool, and goes to the caller's memory aside.
  bool is_unpacked(const Message& message) const {
    return message.kind == Kind::pinned && links_.via_nic;
  }
  std::size_t port_of(int rank) const {
    return static_cast<std::size_t>(of_nodes_.size() == 1 ? 0 : node_of(rank));
  }
  double busiest() const;
  double longest() const;  // the longest chain of steps
  // Adds the times since then again, times `share`.
  void leave_out(const Least& before, double share);
  void expect(double time, EventKind kind, uint32_t segment, uint32_t index) {
    const uint64_t order = uint64_t{static_cast<uint8_t>(kind)} << 60 | uint64_t{segment} << 56;
    events_.push_back({time, order | made_++, index});
    std::push_heap(events_.begin(), events_.end());
  }
  void expect_aside(double time, uint32_t segment, int rank, double takes) {
    expect(time, EventKind::aside, segment, static_cast<uint32_t>(to_do_aside_.size()));
    to_do_aside_.push_back({rank, takes});
  }
  void execute(uint32_t segments);
  void handle(const Event& event);
  void go_on(uint32_t segment, uint32_t strand, double time);
  void end_of_rank(uint32_t segment, uint32_t rank, double time);
  void arrive(uint32_t segment, uint32_t index, double time);
  void received(uint32_t segment, const Message& message, double time);
  void complete(uint32_t segment, uint32_t await, double time);
  double port_us(const Message& message) const {
    return message.count *
           std::max(message.bytes / links_.network.bytes_per_us, links_.network.gap_us);
  }
  double taking_us(const Message& message) const;  // the receiver needs that
  Progress& progress(uint32_t segment, uint32_t strand) {
    return progress_[segment * strands_.size() + strand];
  }
  Missing& missing(uint32_t segment, uint32_t await) {
    return missing_[segment * awaits_.size() + await];
  }

  const LinkModel& links_;
  const Facts& facts_;
  std::span<const int> nodes_;
  double segments_, segment_;
  // The row tells these.
  std::vector<Strand> strands_;  // first those of the ranks
  std::vector<Step> steps_;
  std::vector<Message> messages_;
  std::size_t delivered_ = 0;
  std::vector<Await> awaits_;
  bool is_in_part_ = false;
  std::vector<uint32_t> strand_of_;           // by rank
  std::vector<uint32_t> await_of_, join_of_;  // by rank, in one round or of all parts
  std::vector<int> in_part_;                  // the ranks of a part
  std::vector<uint32_t> asides_;              // by rank
  std::vector<Busy> busy_;                    // by rank, and the ports by node
  double left_out_ = 0;                       // the longest chain of rounds that were left out
  std::size_t joined_ = 0;                    // strands
  int told_ = 0;
  // The execution changes these.
  std::vector<Use> processors_;
  std::vector<Node> of_nodes_;
  std::vector<Progress> progress_;
  std::vector<Missing> missing_;
  std::vector<uint32_t> open_;  // by segment and rank: its strand, and what it does aside
  std::vector<double> ended_;   // by segment
  std::vector<Aside> to_do_aside_;
  std::vector<Event> events_;
  uint64_t made_ = 0;
  double end_ = 0;
};

}  // namespace rdmacoll
