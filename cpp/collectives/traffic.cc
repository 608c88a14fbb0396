#include "collectives/traffic.h"

#include <limits>

namespace rdmacoll {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

}  // namespace

Traffic::Traffic(const LinkModel& links, const Facts& facts, AlgorithmRow::Result result,
                 uint64_t segment_bytes)
    : links_(links),
      facts_(facts),
      nodes_(facts.spread.nodes),
      segments_(segments_of(row_bytes_of_rank(result, facts), segment_bytes)),
      segment_(row_bytes_of_rank(result, facts) / segments_),
      ranks_(static_cast<std::size_t>(facts.ranks)),
      of_nodes_(static_cast<std::size_t>(nodes_.empty() ? facts.ranks
                                                        : 1 + *std::ranges::max_element(nodes_))),
      await_of_(ranks_.size(), kNone) {}

void Traffic::post(const Message& message) {
  add(message.from, {Verb::post, message.count * link(message).overhead_us,
                     static_cast<uint32_t>(messages_.size())});
  messages_.push_back(message);
}

void Traffic::deliver() {
  const std::size_t first = delivered_;
  for (; delivered_ < messages_.size(); ++delivered_) {
    Message& message = messages_[delivered_];
    uint32_t& await = await_of_[message.to];
    if (await == kNone) {
      await = static_cast<uint32_t>(awaits_.size());
      awaits_.push_back({});
      add(message.to, {Verb::await, 0, await});
    }
    message.awaited_by = await;
    ++awaits_[await].missing;
  }
  for (std::size_t i = first; i < delivered_; ++i) await_of_[messages_[i].to] = kNone;
}

void Traffic::mark(int rounds, int left_out) {
  const auto index = static_cast<uint32_t>(marks_.size());
  marks_.push_back({rounds, left_out});
  for (int rank = 0; rank < ranks(); ++rank) add(rank, {Verb::mark, 0, index});
}

double Traffic::Use::take(double time, double takes) {
  const double begins = std::max(time, free);
  if (first < 0) first = begins;
  free = begins + takes;
  used += takes;
  return begins;
}

double Traffic::pass(Use& port, const Message& message, double time) {
  const double each = std::max(message.bytes / links_.network.bytes_per_us, links_.network.gap_us);
  return port.take(time, message.count * each);
}

// The steps of the rank, until one takes time that others may use.
void Traffic::go_on(uint32_t number, double time) {
  Rank& rank = ranks_[number];
  for (; rank.next < rank.steps.size(); ++rank.next) {
    const Step& step = rank.steps[rank.next];
    if (step.verb == Verb::work) {
      rank.processor.take(time, step.takes);
      ++rank.next;
      return expect(rank.processor.free, EventKind::go_on, number);
    }
    if (step.verb == Verb::aside) {
      expect(time, EventKind::aside, number, step.takes);
    } else if (step.verb == Verb::post) {
      if (rank.head < 0) rank.head = rank.processor.used;
      rank.processor.take(time, step.takes);
      const Message& message = messages_[step.index];
      if (are_near(message.from, message.to)) {
        expect(rank.processor.free + links_.node.latency_us, EventKind::arrive, step.index);
      } else {
        expect(rank.processor.free, EventKind::leave, step.index);
      }
    } else if (step.verb == Verb::await) {
      rank.waits = awaits_[step.index].missing > 0;
      if (rank.waits) return;
      time = std::max(time, awaits_[step.index].done);
    } else {
      marks_[step.index].time = std::max(marks_[step.index].time, time);
    }
  }
  end_ = std::max(end_, time);
}

void Traffic::arrive(const Message& message, double time) {
  Rank& rank = ranks_[message.to];
  if (rank.head < 0) rank.head = rank.processor.used;
  double takes = message.count * link(message).overhead_us;
  if (message.kind != Kind::sent && are_near(message.from, message.to)) {
    takes += copy_us(message.bytes, message.count);
  }
  rank.processor.take(time, takes);
  const double done = rank.processor.free;
  end_ = std::max(end_, done);
  if (message.kind == Kind::pinned && links_.via_nic) {
    expect(done, EventKind::aside, static_cast<uint32_t>(message.to),
           copy_us(message.bytes, message.count));
  }
  Await& await = awaits_[message.awaited_by];
  await.done = done;
  const bool is_last = --await.missing == 0;
  const bool is_awaited = rank.waits && rank.steps[rank.next].index == message.awaited_by;
  if (!is_last || !is_awaited) return;
  rank.waits = false;
  expect(done, EventKind::go_on, static_cast<uint32_t>(message.to));
}

void Traffic::handle(const Event& event) {
  if (event.kind == EventKind::go_on) return go_on(event.index, event.time);
  if (event.kind == EventKind::aside) {
    Use& processor = ranks_[event.index].processor;
    processor.take(event.time, event.takes);
    end_ = std::max(end_, processor.free);
    return;
  }
  const Message& message = messages_[event.index];
  if (event.kind == EventKind::leave) {
    Use& port = of_nodes_[static_cast<std::size_t>(node_of(message.from))].out;
    const double begins = pass(port, message, event.time);
    expect(begins + links_.network.latency_us, EventKind::enter, event.index);
  } else if (event.kind == EventKind::enter) {
    Use& port = of_nodes_[static_cast<std::size_t>(node_of(message.to))].in;
    const double begins = pass(port, message, event.time);
    expect(begins + message.count * message.bytes / links_.network.bytes_per_us, EventKind::arrive,
           event.index);
  } else {
    arrive(message, event.time);
  }
}

void Traffic::run() {
  for (int rank = 0; rank < ranks(); ++rank) {
    expect(0, EventKind::go_on, static_cast<uint32_t>(rank));
  }
  while (!events_.empty()) {
    std::pop_heap(events_.begin(), events_.end());
    const Event event = events_.back();
    events_.pop_back();
    handle(event);
  }
}

// The time of the rounds that repeat() has left out.
double Traffic::left_out() const {
  double time = 0;
  for (std::size_t i = 0; i + 1 < marks_.size(); i += 2) {
    const Mark &first = marks_[i], &second = marks_[i + 1];
    time += first.left_out * (second.time - first.time) / second.rounds;
  }
  return time;
}

// A segment alone takes `one`. Segments in flight share processors and ports: each of these is busy
// from its first use on for its time in all of them, and what follows its last use comes then. The
// work before the first message is done for all segments first.
double Traffic::time() {
  run();
  const double one = end_ + left_out();
  const double all = end_ > 0 ? one / end_ : 1;  // relative to what was run
  const double together = std::min<double>(segments_, kSegmentsInFlight);
  double head = 0, pace = 0;
  for (const Rank& rank : ranks_) head = std::max(head, rank.head);
  double few = one + (together - 1) * head;
  const auto bound = [&](const Use& use, bool waits_for_heads) {
    if (use.used == 0) return;
    pace = std::max(pace, use.used * all);
    const double begins = use.first + (waits_for_heads ? (together - 1) * head : 0);
    few = std::max(few, begins + (together * use.used - use.free) * all + one);
  };
  for (const Rank& rank : ranks_) bound(rank.processor, rank.head <= 0);
  for (const Node& node : of_nodes_) {
    bound(node.out, true);
    bound(node.in, true);
  }
  return few + (segments_ - together) * std::max(pace, one / kSegmentsInFlight);
}

}  // namespace rdmacoll
