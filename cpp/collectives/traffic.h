// The traffic of one segment among ranks of several nodes, and the time that it takes. A row tells
// the copies, sums and messages of its algorithm. They are timed by the link model that cost_of()
// has, but no schedule is made, and no hazards are searched. All times are in microseconds. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "collectives/choose.h"
#include "collectives/schedule.h"

namespace rdmacoll {

class Traffic {
 public:
  // `segment_bytes`: the length of a segment. The other arguments outlive this.
  Traffic(const LinkModel& links, const Facts& facts, AlgorithmRow::Result result,
          uint64_t segment_bytes);

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
    if (links_.via_nic || are_near(rank, peer)) copy(rank, bytes, count);
  }
  // The same with a result. If a NIC moves results of this rank (`is_pinned`), they are in the
  // pool.
  void pack_result(int rank, int peer, double bytes, bool is_pinned) {
    if (are_near(rank, peer) && !(is_pinned && links_.via_nic)) copy(rank, bytes);
  }
  // Such a result goes to the caller's memory at last, and nothing waits for that.
  void unpack(int rank, double bytes, bool is_pinned = true) {
    if (is_pinned && links_.via_nic) add(rank, {Verb::aside, copy_us(bytes, 1)});
  }
  void send(int from, int to, double bytes, double count = 1) {
    post({from, to, bytes, count, Kind::sent});
  }
  // The same. The data becomes a part of the receiver's result, which may be pinned.
  void move(int from, int to, double bytes, bool is_pinned = false, double count = 1) {
    const bool is_far = !are_near(from, to);
    post({from, to, bytes, count, is_pinned || is_far ? Kind::pinned : Kind::moved});
  }
  // The same. The receiver copies the data to its pool, to pass it on.
  void keep(int from, int to, double bytes) { post({from, to, bytes, 1, Kind::moved}); }
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
      for (int rank = 0; rank < ranks(); ++rank) {
        visit(rank, (rank + distance) % ranks(), static_cast<double>(all) / shown);
      }
    }
  }
  // Calls round(number) for numbers from 0 to rounds - 1. In large worlds it leaves some out that
  // are like the ones before, and their time is added.
  template <typename Round>
  void repeat(int rounds, Round round) {
    const int most = rounds_most();
    if (rounds <= most) {
      for (int number = 0; number < rounds; ++number) round(number);
      return;
    }
    for (int number = 0; number < most / 2; ++number) round(number);
    mark(most / 2, rounds - most);
    for (int number = rounds - (most - most / 2); number < rounds; ++number) round(number);
    mark(most - most / 2, 0);
  }

  // The time of all segments.
  double time();

 private:
  // In each round, each rank sends a message.
  int rounds_most() const { return std::max(8, (1 << 11) / ranks()); }

  enum class Kind : uint8_t { sent, moved, pinned };
  struct Message {
    int from = 0, to = 0;
    double bytes = 0, count = 1;
    Kind kind = Kind::sent;
    uint32_t awaited_by = 0;  // in awaits_
  };
  enum class Verb : uint8_t { work, aside, post, await, mark };
  struct Step {
    Verb verb = Verb::work;
    double takes = 0;
    uint32_t index = 0;  // in messages_, awaits_ or marks_
  };
  struct Await {
    uint32_t missing = 0;
    double done = 0;
  };
  struct Mark {
    int rounds = 0, left_out = 0;  // before and after it
    double time = 0;
  };
  struct Use {  // the use of a processor or a port
    double free = 0, used = 0;
    double first = -1;
    double take(double time, double takes);
  };
  struct Rank {
    std::vector<Step> steps;
    std::size_t next = 0;
    Use processor;
    double head = -1;  // the time of its work before its first message; -1: there was none yet
    bool waits = false;
  };
  struct Node {
    Use out, in;
  };
  enum class EventKind : uint8_t { leave, enter, arrive, go_on, aside };
  struct Event {
    double time = 0;
    uint64_t number = 0;
    EventKind kind = EventKind::leave;
    uint32_t index = 0;  // a rank, or in messages_
    double takes = 0;
    bool operator<(const Event& event) const {
      return std::tie(event.time, event.kind, event.number) < std::tie(time, kind, number);
    }
  };

  double copy_us(double bytes, double count) const {
    return count * (links_.step_us + bytes / links_.copy_bytes_per_us);
  }
  const Link& link(const Message& message) const {
    return are_near(message.from, message.to) ? links_.node : links_.network;
  }
  void add(int rank, const Step& step) { ranks_[rank].steps.push_back(step); }
  void work(int rank, double takes) { add(rank, {Verb::work, takes}); }
  void post(const Message& message);
  void mark(int rounds, int left_out);
  void expect(double time, EventKind kind, uint32_t index, double takes = 0) {
    events_.push_back({time, made_++, kind, index, takes});
    std::push_heap(events_.begin(), events_.end());
  }
  void run();
  double left_out() const;
  void handle(const Event& event);
  void go_on(uint32_t rank, double time);
  void arrive(const Message& message, double time);
  double pass(Use& port, const Message& message, double time);

  const LinkModel& links_;
  const Facts& facts_;
  std::span<const int> nodes_;
  double segments_, segment_;
  std::vector<Rank> ranks_;
  std::vector<Node> of_nodes_;
  std::vector<Message> messages_;
  std::size_t delivered_ = 0;
  std::vector<Await> awaits_;
  std::vector<uint32_t> await_of_;  // by rank, in one round
  std::vector<Mark> marks_;
  std::vector<Event> events_;
  uint64_t made_ = 0;
  double end_ = 0;
};

}  // namespace rdmacoll
