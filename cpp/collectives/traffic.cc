#include "collectives/traffic.h"

#include <cmath>

namespace rdmacoll {
namespace {

// At most so many steps are executed, but one segment at least.
constexpr double kStepsExecuted = 6000;

}  // namespace

Traffic::Traffic(const LinkModel& links, const Facts& facts, AlgorithmRow::Result result,
                 uint64_t segment_bytes)
    : links_(links),
      facts_(facts),
      nodes_(facts.spread.nodes),
      segments_(segments_of(row_bytes_of_rank(result, facts), segment_bytes)),
      segment_(row_bytes_of_rank(result, facts) / segments_) {
  begin(facts.ranks, nodes_.empty() ? facts.ranks : 1 + *std::ranges::max_element(nodes_));
}

void Traffic::nodes_are_alike(bool are_alike) {
  if (are_alike && facts_.spread.ranks_of_node > 0) begin(facts_.spread.ranks_of_node, 1);
}

void Traffic::begin(int told, int nodes) {
  told_ = told;
  const auto count = static_cast<std::size_t>(told);
  strands_.assign(count, {});
  strand_of_.resize(count);
  await_of_.assign(count, kNone);
  join_of_.assign(count, kNone);
  asides_.assign(count, 0);
  processors_.assign(count, {});
  of_nodes_.assign(static_cast<std::size_t>(nodes), {});
  busy_.assign(std::max(count, of_nodes_.size()), {});
  for (int rank = 0; rank < told; ++rank) {
    strands_[rank].rank = rank;
    strand_of_[rank] = static_cast<uint32_t>(rank);
  }
}

// The strand of the rank. It begins one for a part that has none yet.
uint32_t Traffic::strand_of(int rank) {
  const auto main = static_cast<uint32_t>(rank);
  if (!is_in_part_ || strand_of_[rank] != main) return strand_of_[rank];
  uint32_t& join = join_of_[rank];
  if (join == kNone) {
    join = static_cast<uint32_t>(awaits_.size());
    awaits_.push_back({main, 0});
  }
  ++awaits_[join].missing;
  const auto strand = static_cast<uint32_t>(strands_.size());
  const double begins = add_to(main, {Verb::begin, 0, strand}).ends;
  strands_.push_back({.rank = rank, .joined_by = join, .ends = begins});
  in_part_.push_back(rank);
  return strand_of_[rank] = strand;
}

void Traffic::leave_out(const Least& before, double share) {
  for (std::size_t i = 0; i < busy_.size(); ++i) {
    Busy& now = busy_[i];
    const Busy& then = before.busy[i];
    now.processor += share * (now.processor - then.processor);
    now.out += share * (now.out - then.out);
    now.in += share * (now.in - then.in);
  }
  left_out_ += share * (longest() - before.longest);
}

Traffic::Strand& Traffic::add_to(uint32_t number, const Step& step) {
  Strand& strand = strands_[number];
  const auto index = static_cast<uint32_t>(steps_.size());
  (strand.first == kNone ? strand.first : steps_[strand.last].next) = index;
  strand.last = index;
  steps_.push_back(step);
  return strand;
}

void Traffic::end_part() {
  for (const int rank : in_part_) strand_of_[rank] = static_cast<uint32_t>(rank);
  in_part_.clear();
  is_in_part_ = false;
}

void Traffic::join_parts() {
  for (; joined_ < strands_.size(); ++joined_) {
    double& ends = strands_[strands_[joined_].rank].ends;
    ends = std::max(ends, strands_[joined_].ends);
  }
  for (int rank = 0; rank < told(); ++rank) {
    if (join_of_[rank] != kNone) add(rank, {Verb::await, 0, join_of_[rank]});
    join_of_[rank] = kNone;
  }
}

void Traffic::post(Message message) {
  if (message.from >= told()) return;
  message.to %= told();
  const double takes = message.count * link(message).overhead_us;
  Strand& strand = add(message.from, {Verb::post, takes, static_cast<uint32_t>(messages_.size())});
  strand.ends += takes;
  message.arrives = strand.ends + link(message).latency_us;
  busy_[message.from].processor += takes;
  busy_[message.to].processor += taking_us(message);
  if (!message.is_near) {
    message.arrives += message.count * message.bytes / links_.network.bytes_per_us;
    busy_[port_of(message.from)].out += port_us(message);
    busy_[port_of(message.to)].in += port_us(message);
  }
  messages_.push_back(message);
}

double Traffic::taking_us(const Message& message) const {
  const int copies = int{is_copied(message)} + int{is_unpacked(message)};
  return message.count * link(message).overhead_us + copies * copy_us(message.bytes, message.count);
}

void Traffic::deliver() {
  const std::size_t first = delivered_;
  for (; delivered_ < messages_.size(); ++delivered_) {
    Message& message = messages_[delivered_];
    const uint32_t number = strand_of(message.to);
    uint32_t& await = await_of_[message.to];
    if (await == kNone) {
      await = static_cast<uint32_t>(awaits_.size());
      awaits_.push_back({number, 0});
      add(message.to, {Verb::await, 0, await});
    }
    message.awaited_by = await;
    ++awaits_[await].missing;
    double& ends = strands_[number].ends;
    ends = std::max(ends, message.arrives + message.count * link(message).overhead_us);
    if (is_unpacked(message)) ++asides_[message.to];
  }
  for (std::size_t i = first; i < delivered_; ++i) await_of_[messages_[i].to] = kNone;
}

double Traffic::Use::take(double time, double takes) {
  const double begins = std::max(time, free);
  free = begins + takes;
  return begins;
}

// The steps of the strand, until one takes time that others may use.
void Traffic::go_on(uint32_t segment, uint32_t number, double time) {
  const Strand& strand = strands_[number];
  Progress& at = progress(segment, number);
  Use& processor = processors_[strand.rank];
  for (; at.next != kNone; at.next = steps_[at.next].next) {
    const Step& step = steps_[at.next];
    switch (step.verb) {
      case Verb::work:
        processor.take(time, step.takes);
        at.next = step.next;
        return expect(processor.free, EventKind::go_on, segment, number);
      case Verb::aside:
        expect_aside(time, segment, strand.rank, step.takes);
        break;
      case Verb::post: {
        processor.take(time, step.takes);
        const Message& message = messages_[step.index];
        if (message.is_near) {
          expect(processor.free + links_.node.latency_us, EventKind::arrive, segment, step.index);
        } else {
          expect(processor.free, EventKind::leave, segment, step.index);
        }
        break;
      }
      case Verb::await:
        at.waits = missing(segment, step.index).count > 0;
        if (at.waits) return;
        time = std::max(time, missing(segment, step.index).done);
        break;
      case Verb::begin:
        expect(time, EventKind::go_on, segment, step.index);
        break;
    }
  }
  if (number < processors_.size()) return end_of_rank(segment, number, time);
  complete(segment, strand.joined_by, time);
}

// The strand of the rank has ended, or something that it does aside.
void Traffic::end_of_rank(uint32_t segment, uint32_t rank, double time) {
  end_ = std::max(end_, time);
  if (--open_[segment * processors_.size() + rank] > 0) return;
  ended_[segment] = std::max(ended_[segment], time);
  // The next segment that shares this segment's place begins.
  const uint32_t next = segment + kSegmentsInFlight;
  if (next < ended_.size()) expect(time, EventKind::go_on, next, rank);
}

// The receiver copies what a peer of its node shows it, when its processor is free for that.
void Traffic::arrive(uint32_t segment, uint32_t index, double time) {
  const Message& message = messages_[index];
  Use& processor = processors_[message.to];
  processor.take(time, message.count * link(message).overhead_us);
  if (is_copied(message)) return expect(processor.free, EventKind::copy, segment, index);
  received(segment, message, processor.free);
}

// The receiver has the message.
void Traffic::received(uint32_t segment, const Message& message, double time) {
  if (is_unpacked(message)) {
    expect_aside(time, segment, message.to, copy_us(message.bytes, message.count));
  }
  complete(segment, message.awaited_by, time);
}

// One of those for which the await waits is there.
void Traffic::complete(uint32_t segment, uint32_t await, double time) {
  Missing& left = missing(segment, await);
  left.done = time;
  const uint32_t strand = awaits_[await].strand;
  Progress& at = progress(segment, strand);
  const bool is_awaited = at.waits && steps_[at.next].index == await;
  if (--left.count > 0 || !is_awaited) return;
  at.waits = false;
  expect(time, EventKind::go_on, segment, strand);
}

void Traffic::handle(const Event& event) {
  const uint32_t segment = event.segment();
  const EventKind kind = event.kind();
  if (kind == EventKind::go_on) return go_on(segment, event.index, event.time);
  if (kind == EventKind::aside) {
    const auto [rank, takes] = to_do_aside_[event.index];
    processors_[rank].take(event.time, takes);
    return end_of_rank(segment, static_cast<uint32_t>(rank), processors_[rank].free);
  }
  const Message& message = messages_[event.index];
  if (kind == EventKind::leave) {
    const double begins = of_nodes_[port_of(message.from)].out.take(event.time, port_us(message));
    expect(begins + links_.network.latency_us, EventKind::enter, segment, event.index);
  } else if (kind == EventKind::enter) {
    const double begins = of_nodes_[port_of(message.to)].in.take(event.time, port_us(message));
    const double passes = message.count * message.bytes / links_.network.bytes_per_us;
    expect(begins + passes, EventKind::arrive, segment, event.index);
  } else if (kind == EventKind::copy) {
    Use& processor = processors_[message.to];
    processor.take(event.time, copy_us(message.bytes, message.count));
    received(segment, message, processor.free);
  } else {
    arrive(segment, event.index, event.time);
  }
}

void Traffic::execute(uint32_t segments) {
  ended_.assign(segments, 0);
  for (uint32_t segment = 0; segment < segments; ++segment) {
    for (const Strand& strand : strands_) progress_.push_back({strand.first, false});
    for (const Await& await : awaits_) missing_.push_back({await.missing, 0});
    for (const uint32_t asides : asides_) open_.push_back(1 + asides);
    for (uint32_t rank = 0; rank < processors_.size() && segment < kSegmentsInFlight; ++rank) {
      expect(0, EventKind::go_on, segment, rank);
    }
  }
  while (!events_.empty()) {
    std::pop_heap(events_.begin(), events_.end());
    const Event event = events_.back();
    events_.pop_back();
    handle(event);
  }
}

double Traffic::busiest() const {
  double most = 0;
  for (const Busy& busy : busy_) most = std::max({most, busy.processor, busy.out, busy.in});
  return most;
}

double Traffic::longest() const {
  double longest = 0;
  for (const Strand& strand : strands_) longest = std::max(longest, strand.ends);
  return longest;
}

double Traffic::bound() const {
  return std::max(std::ceil(segments_ / kSegmentsInFlight) * (longest() + left_out_),
                  segments_ * busiest());
}

// Some segments are executed, and the others follow at the pace that was reached.
double Traffic::time() {
  const double affordable = kStepsExecuted / static_cast<double>(steps_.size() + 1);
  const auto executed = static_cast<uint32_t>(
      std::min(segments_, std::clamp<double>(affordable, 1, 2 * kSegmentsInFlight)));
  execute(executed);
  const double all = longest() > 0 ? 1 + left_out_ / longest() : 1;  // beside what was executed
  const bool is_steady = executed > kSegmentsInFlight;
  const double before = is_steady ? ended_[executed - 1 - kSegmentsInFlight] : 0;
  const double all_in_flight = is_steady ? ended_[executed - 1] - before : longest();
  const double pace = std::max(busiest(), all * all_in_flight / kSegmentsInFlight);
  return std::max(bound(), all * end_ + (segments_ - executed) * pace);
}

}  // namespace rdmacoll
