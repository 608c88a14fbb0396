#include "collectives/cost.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "base/link_ports.h"
#include "base/status.h"
#include "collectives/lower.h"
#include "collectives/node_cost.h"

namespace rdmacoll {
namespace {

// At most this many segments are executed. The pipeline has then long been full.
constexpr uint32_t kSegmentsExecuted = 32;

// A step of one segment at one rank.
struct Position {
  int rank = 0;
  uint32_t segment = 0;
  uint16_t step = 0;
};

// ready: a step can start. matched: both ends of a transfer are ready. passing: its first byte
// reaches its next port. arrived: its last byte is there. done: a step has ended. next: a rank has
// posted what a computing step made ready, and begins the next such step.
enum class EventKind : uint8_t { ready, matched, passing, arrived, done, next };

struct Event {
  double time = 0;
  uint64_t number = 0;  // in the order of creation
  EventKind kind = EventKind::ready;
  Position at;
  Position other;  // matched: the receiving step; passing: the sending one
  uint8_t hop = 0;

  // Events at the same time go in the order of the schedules. A rank's transfers thus get the port
  // in the order in which it posts them. The queue has the largest on top.
  bool operator<(const Event& event) const { return event.order() < order(); }
  std::tuple<double, EventKind, uint32_t, uint16_t, uint64_t> order() const {
    return {time, kind, at.segment, at.step, number};
  }
};

class TimedExecution {
 public:
  struct Traffic {  // by one rank
    uint64_t messages = 0;
    double network_bytes = 0;
  };

  // `bytes`: of all segments, of which `segments` are executed.
  TimedExecution(const std::vector<Schedule>& schedules, std::span<const int> nodes,
                 const LinkModel& links, double bytes, double segment_bytes, uint32_t segments)
      : schedules_(schedules),
        links_(links),
        is_one_node_(std::ranges::adjacent_find(nodes, std::not_equal_to<>()) == nodes.end()),
        memory_(memory_in_turns(links.memory, static_cast<int>(schedules.size()))),
        node_{.latency_us = memory_.round_us_of(segment_bytes)},
        segment_bytes_(segment_bytes),
        cores_(processors_of(links.memory, static_cast<int>(schedules.size()))),
        node_cost_(memory_, static_cast<int>(schedules.size()), cores_, bytes, segment_bytes),
        ports_(links, nodes),
        bytes_per_part_(segment_bytes / schedules.front().parts),
        segments_(segments),
        computes_(schedules.size()),
        processors_(schedules.size(), 0),
        caches_(schedules.size(), 0),
        traffic_(schedules.size()) {
    for (const Schedule& schedule : schedules) {
      RC_ASSERT(schedule.parts == schedules.front().parts);
      ranks_.emplace_back(schedule);
    }
  }

  // Returns the time when all segments have ended at all ranks, in microseconds.
  double run() {
    for (int rank = 0; rank < static_cast<int>(schedules_.size()); ++rank) {
      const uint32_t first = std::min<uint32_t>(segments_, kSegmentsInFlight);
      for (uint32_t segment = 0; segment < first; ++segment) begin(rank, segment, 0);
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      handle(event);
    }
    for (const RankState& rank : ranks_) {
      RC_ASSERT(rank.begun == segments_ && rank.in_flight == 0, "a schedule that does not end");
    }
    return end_;
  }
  const std::vector<Traffic>& traffic() const { return traffic_; }

 private:
  struct Run {  // one segment at one rank
    std::vector<uint16_t> waits, unread;
    std::vector<Position> shown_by;  // by await: the publishing step
    uint32_t left = 0;
  };
  struct RankState {
    explicit RankState(const Schedule& schedule)
        : successors(schedule.steps.size()), unread(schedule.steps.size(), 0) {
      for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
        const Step& step = schedule.steps[i];
        waits.push_back(step.afters);
        for (uint16_t after : schedule.afters_of(step)) {
          successors[after].push_back(static_cast<uint16_t>(i));
        }
        schedule.each_view(step, [this](uint16_t await) { ++unread[await]; });
        if (step.lends) answers.emplace(step.to.slot, step.peer);
      }
    }
    std::vector<std::vector<uint16_t>> successors;
    std::vector<uint16_t> waits, unread;  // at the beginning of a segment
    std::map<uint16_t, int> answers;      // by lent slot: the peer that writes its answer there
    std::array<Run, kSegmentsInFlight> runs;
    uint32_t begun = 0;
    uint32_t in_flight = 0;
  };

  Run& run_of(const Position& at) { return ranks_[at.rank].runs[at.segment % kSegmentsInFlight]; }
  const Step& step_of(const Position& at) const { return schedules_[at.rank].steps[at.step]; }
  const Link& link_between(int a, int b) const { return is_one_node_ ? node_ : ports_.link(a, b); }
  double bytes_of(const Slice& slice) const { return bytes_per_part_ * slice.parts * width(slice); }

  void expect(double time, EventKind kind, const Position& at, const Position& other = {},
              int hop = 0) {
    events_.push({time, made_++, kind, at, other, static_cast<uint8_t>(hop)});
  }

  double& processor_of(int rank) { return processors_[is_one_node_ ? rank % cores_ : rank]; }

  // Occupies the rank's processor for `takes`, as soon as it is free. Returns when that ends.
  double work(int rank, double from, double takes) {
    return processor_of(rank) = std::max(processor_of(rank), from) + takes;
  }

  void begin(int rank, uint32_t segment, double time) {
    RankState& state = ranks_[rank];
    Run& run = state.runs[segment % kSegmentsInFlight];
    run.waits = state.waits;
    run.unread = state.unread;
    run.left = static_cast<uint32_t>(state.waits.size());
    run.shown_by.resize(run.left);
    ++state.begun;
    ++state.in_flight;
    if (run.left == 0) return end(rank, segment, time);
    for (uint16_t step = 0; step < run.left; ++step) {
      if (run.waits[step] == 0) expect(time, EventKind::ready, {rank, segment, step});
    }
  }

  void end(int rank, uint32_t segment, double time) {
    RankState& state = ranks_[rank];
    --state.in_flight;
    end_ = std::max(end_, time);
    // The next segment that shares this segment's place begins.
    if (segment + kSegmentsInFlight < segments_) begin(rank, segment + kSegmentsInFlight, time);
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::ready:
        return start(event.at, event.time);
      case EventKind::matched:
        return transfer(event.at, event.other, event.time);
      case EventKind::passing:
        return pass(event.at, event.other, event.hop, event.time);
      case EventKind::arrived:
        return expect(work(event.at.rank, event.time, message_us(event.at)), EventKind::done,
                      event.at);
      case EventKind::done:
        return finish(event.at, event.time);
      case EventKind::next:
        return compute(computes_[event.at.rank].front(), event.time);
    }
  }

  void start(const Position& at, double time) {
    const Step& step = step_of(at);
    if (computes(step.verb)) {
      if (is_one_node_) computes_[at.rank].push_back(at);
      if (computes_[at.rank].size() <= 1) compute(at, time);
      return;
    }
    const bool out = sends(step.verb);
    if (out) time = work(at.rank, time, message_us(at));
    const auto key = out ? std::tuple(at.rank, step.peer, at.segment, step.ordinal)
                         : std::tuple(step.peer, at.rank, at.segment, step.ordinal);
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) {
      waiting_.emplace(key, std::pair(at, time));
      return;
    }
    const auto [other, since] = found->second;
    waiting_.erase(found);
    expect(std::max(time, since), EventKind::matched, out ? at : other, out ? other : at);
  }

  void compute(const Position& at, double time) {
    const double begins = std::max(processor_of(at.rank), time);
    const double done = work(at.rank, begins, is_one_node_ ? node_us(at) : compute_us(step_of(at)));
    expect(std::max(done, is_one_node_ ? handed(at, begins) : 0), EventKind::done, at);
  }

  // Processor time to post or to take the step's message.
  double message_us(const Position& at) {
    const Step& step = step_of(at);
    if (!is_one_node_) return ports_.link(at.rank, step.peer).overhead_us;
    const Position& from = step.verb == Verb::await ? run_of(at).shown_by[at.step] : at;
    return memory_.message_us_of(segment_bytes_, bytes_of(step_of(from).to));
  }

  double compute_us(const Step& step) const {
    const double rate = step.verb == Verb::reduce
                            ? links_.reduce_bytes_per_us / std::max(1, step.sources - 1)
                            : links_.copy_bytes_per_us;
    return links_.step_us + bytes_of(step.to) / rate;
  }

  // The rank whose cache has what a step reads there, within a single node. -1: this rank's.
  int giver_of(const Position& at, const Slice& source) {
    if (source.space == Space::view) return run_of(at).shown_by[source.slot].rank;
    const std::map<uint16_t, int>& answers = ranks_[at.rank].answers;
    const auto found = answers.find(source.slot);
    return source.space == Space::scratch && found != answers.end() ? found->second : -1;
  }

  DataLocation source_of(const Position& at, const Slice& slice) {
    if (is_callers(slice)) return DataLocation::caller;
    if (giver_of(at, slice) < 0) return DataLocation::pool;
    const bool is_view = slice.space == Space::view;
    return is_view && is_callers(step_of(run_of(at).shown_by[slice.slot]).to)
               ? DataLocation::peer_caller
               : DataLocation::peer_pool;
  }

  DataLocation target_of(const Position& at, const Slice& slice) {
    if (is_callers(slice)) return DataLocation::caller;
    return giver_of(at, slice) < 0 ? DataLocation::pool : DataLocation::lent;
  }

  double node_us(const Position& at) {
    const Step& step = step_of(at);
    const std::span<const Slice> sources = schedules_[at.rank].sources_of(step);
    const DataLocation to = target_of(at, step.to);
    if (step.verb != Verb::reduce) {
      double bytes = 0;  // the sources all lie in one place, except for Bruck's algorithm
      for (const Slice& source : sources) bytes += bytes_of(source);
      return node_cost_.copy_us(bytes, source_of(at, sources.front()), to);
    }
    DataLocation own = DataLocation::pool, peer = DataLocation::pool;
    for (const Slice& source : sources)
      (source.space == Space::view ? peer : own) = source_of(at, source);
    return node_cost_.reduce_us(bytes_of(step.to), own, peer, step.sources - 1, to);
  }

  // The time at which the caches of peers have handed over what this step reads there.
  double handed(const Position& at, double time) {
    double done = 0;
    for (const Slice& source : schedules_[at.rank].sources_of(step_of(at))) {
      if (source_of(at, source) != DataLocation::peer_pool) continue;
      double& free_from = caches_[giver_of(at, source) % cores_];
      free_from = std::max(free_from, time) + node_cost_.handed_us(bytes_of(source));
      done = std::max(done, free_from);
    }
    return done;
  }

  void transfer(const Position& from, const Position& to, double time) {
    const Link& link = link_between(from.rank, to.rank);
    const Step& sent = step_of(from);
    traffic_[from.rank].messages += 1;
    // The others have a shared core when the sender has nothing left to do.
    if (is_one_node_ && memory_.shares_core()) time = std::max(time, processor_of(from.rank));
    if (sent.verb == Verb::publish) {
      run_of(to).shown_by[to.step] = from;
      if (run_of(to).unread[to.step] == 0) expect(time, EventKind::done, from);
      return expect(time + link.latency_us, EventKind::arrived, to);
    }
    const double bytes = bytes_of(sent.to);
    double sent_at = 0;
    const double begins = ports_.pass(0, from.rank, to.rank, bytes, time, sent_at);
    if (!ports_.is_near(from.rank, to.rank)) traffic_[from.rank].network_bytes += bytes;
    expect(sent_at, EventKind::done, from);
    expect(begins + link.latency_us, EventKind::passing, to, from, 1);
  }

  void pass(const Position& to, const Position& from, int hop, double time) {
    double last = 0;
    const double bytes = bytes_of(step_of(to).to);
    const double begins = ports_.pass(hop, from.rank, to.rank, bytes, time, last);
    if (hop + 1 < ports_.hops(from.rank, to.rank)) {
      return expect(begins, EventKind::passing, to, from, hop + 1);
    }
    expect(last, EventKind::arrived, to);
  }

  void finish(const Position& at, double time) {
    Run& run = run_of(at);
    const Schedule& schedule = schedules_[at.rank];
    schedule.each_view(step_of(at), [&](uint16_t await) {
      if (--run.unread[await] > 0) return;
      const Position shown_by = run.shown_by[await];
      expect(time + link_between(at.rank, shown_by.rank).latency_us, EventKind::done, shown_by);
    });
    for (uint16_t successor : ranks_[at.rank].successors[at.step]) {
      if (--run.waits[successor] == 0) {
        expect(time, EventKind::ready, {at.rank, at.segment, successor});
      }
    }
    if (--run.left == 0) end(at.rank, at.segment, time);
    if (!is_one_node_ || !computes(step_of(at).verb)) return;
    computes_[at.rank].pop_front();
    if (!computes_[at.rank].empty()) expect(time, EventKind::next, {at.rank});
  }

  const std::vector<Schedule>& schedules_;
  const LinkModel& links_;
  const bool is_one_node_;
  // If all ranks are on one node:
  const NodeMemory memory_;
  const Link node_;
  const double segment_bytes_;
  const int cores_;  // ranks may share them
  const NodeCost node_cost_;
  LinkPorts ports_;
  double bytes_per_part_;
  uint32_t segments_;
  std::vector<RankState> ranks_;
  // By rank, within a single node: the computing steps that are ready. The first one is under way.
  std::vector<std::deque<Position>> computes_;
  std::vector<double> processors_;  // the time until which each is busy
  std::vector<double> caches_;  // within a node, by core: the time until which it serves readers
  // Transfers of which one end is ready: that end, and the time since which it waits. The key is
  // the sender, the receiver, the segment and the ordinal.
  std::map<std::tuple<int, int, uint32_t, uint16_t>, std::pair<Position, double>> waiting_;
  std::priority_queue<Event> events_;
  uint64_t made_ = 0;
  double end_ = 0;
  std::vector<Traffic> traffic_;
};

}  // namespace

Cost cost_of(const std::vector<Schedule>& schedules, std::span<const int> nodes,
             const LinkModel& links, uint64_t bytes, uint64_t segment_bytes) {
  const uint64_t segments = std::max<uint64_t>((bytes + segment_bytes - 1) / segment_bytes, 1);
  const double each = static_cast<double>(bytes) / static_cast<double>(segments);
  const auto executed = static_cast<uint32_t>(std::min<uint64_t>(segments, kSegmentsExecuted));
  const auto all = static_cast<double>(bytes);
  TimedExecution execution(schedules, nodes, links, all, each, executed);
  Cost cost{execution.run()};
  if (segments > executed) {
    const double half = TimedExecution(schedules, nodes, links, all, each, executed / 2).run();
    const double rate = (cost.time_us - half) / (executed - executed / 2);
    cost.time_us += static_cast<double>(segments - executed) * rate;
  }
  const double times = static_cast<double>(segments) / executed;
  std::map<int, double> sent;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    const TimedExecution::Traffic& traffic = execution.traffic()[rank];
    cost.messages = std::max(
        cost.messages, static_cast<uint64_t>(static_cast<double>(traffic.messages) * times + 0.5));
    double& bytes_of_node = sent[nodes[rank]];
    bytes_of_node += traffic.network_bytes * times;
    cost.network_bytes = std::max(cost.network_bytes, static_cast<uint64_t>(bytes_of_node + 0.5));
  }
  return cost;
}

uint64_t row_bytes(AlgorithmRow::Result result, const Schedule& schedule, uint64_t bytes) {
  if (result != AlgorithmRow::Result::exchange) return bytes;
  return bytes * schedule.parts / static_cast<uint64_t>(schedule.ranks);
}

std::vector<Schedule> lowered_schedules(Algorithm algorithm, Shape shape, const LinkModel& links,
                                        bool is_visible) {
  std::vector<Schedule> lowered;
  for (shape.rank = 0; shape.rank < shape.members(); ++shape.rank) {
    const CallerMemory memory = is_visible ? CallerMemory::visible : CallerMemory::hidden;
    Placement placement{.input = memory, .output = memory};
    for (int peer = 0; peer < shape.members(); ++peer) {
      placement.views.push_back(shape.node_of(peer) == shape.node_of(shape.rank));
      placement.nics.push_back(links.via_nic && !placement.views.back());
    }
    placement.lends = placement.views;
    lowered.push_back(lower(make_schedule(algorithm, shape), placement));
  }
  return lowered;
}

}  // namespace rdmacoll
