#include "collectives/verify.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "collectives/bits.h"
#include "collectives/outcome.h"

namespace rdmacoll {
namespace {

// The value of a part: its contributions, and whether it was summed in canonical order.
struct Value {
  int content = -1;                    // Outcome::content
  std::vector<uint8_t> contributions;  // by rank: how often it is in the sum
  bool canonical = true;
  bool final = false;
  bool wide = false;

  bool operator==(const Value&) const = default;
};

int largest_power_below(int count) {
  int power = 1;
  while (power * 2 < count) power *= 2;
  return power;
}

// The ranks in the value, if they are consecutive.
std::optional<std::pair<int, int>> range_of(const Value& value) {
  const auto& c = value.contributions;
  const auto first = std::find(c.begin(), c.end(), 1);
  const auto last = std::find(first, c.end(), 0);
  if (first == c.end() || std::find(last, c.end(), 1) != c.end()) return std::nullopt;
  return std::pair(static_cast<int>(first - c.begin()), static_cast<int>(last - c.begin()));
}

// Whether [begin, end) is a node of the canonical tree over the `count` ranks from `first` on.
bool is_tree_node(int begin, int end, int first, int count) {
  while (count > 0) {
    if (first == begin && first + count == end) return true;
    if (count == 1) return false;
    const int left = largest_power_below(count);
    if (begin < first + left) {
      count = left;
    } else {
      first += left;
      count -= left;
    }
  }
  return false;
}

// The key of part i of a slice. Input and output of one part are the same place.
uint64_t cell(const Slice& slice, int i) {
  const Space space = slice.space == Space::output ? Space::input : slice.space;
  return uint64_t{static_cast<uint8_t>(space)} << 32 | uint64_t{slice.slot} << 16 |
         static_cast<uint64_t>(slice.first_part + i);
}

// One rank's memory, and the state of its steps.
class Machine {
 public:
  Machine(const Schedule& schedule, const Outcome& outcome)
      : schedule_(schedule),
        outcome_(outcome),
        waits_for_(schedule.steps.size()),
        successors_(schedule.steps.size()),
        unread_(schedule.steps.size(), 0),
        done_(schedule.steps.size(), false) {
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      waits_for_[i] = step.afters;
      for (uint16_t after : schedule.afters_of(step)) successors_[after].push_back(i);
      schedule.each_view(step, [this](uint16_t await) { ++unread_[await]; });
    }
    for (int part = 0; part < schedule.parts; ++part) {
      if (!outcome.begins_with(schedule.rank, part)) continue;
      Value value{content(part), std::vector<uint8_t>(outcome.ranks(), 0), true, false};
      value.contributions[schedule.rank] = 1;
      cells_[cell({.space = Space::input}, part)] = value;
    }
  }

  const Schedule& schedule() const { return schedule_; }
  int content(int part) const { return outcome_.content(schedule_.rank, part); }
  const Step& step(std::size_t index) const { return schedule_.steps[index]; }
  bool is_done(std::size_t index) const { return done_[index]; }
  bool is_ready(std::size_t index) const { return waits_for_[index] == 0; }
  // Returns the steps that become ready.
  std::vector<std::size_t> finish(std::size_t index) {
    done_[index] = true;
    std::vector<std::size_t> ready;
    for (std::size_t successor : successors_[index]) {
      if (--waits_for_[successor] == 0) ready.push_back(successor);
    }
    return ready;
  }
  // The number of steps that have yet to read the view of this await.
  uint16_t& unread(std::size_t await) { return unread_[await]; }

  std::vector<Value> read(const Slice& slice) const {
    std::vector<Value> values;
    for (int i = 0; i < slice.parts; ++i) {
      const auto found = cells_.find(cell(slice, i));
      values.push_back(found == cells_.end() ? Value{} : found->second);
    }
    return values;
  }
  void write(const Slice& slice, const std::vector<Value>& values) {
    for (int i = 0; i < slice.parts; ++i) cells_[cell(slice, i)] = values[i];
  }

  bool holds_result(const Slice& slice) const {
    const std::vector<Value> values = read(slice);
    return std::any_of(values.begin(), values.end(),
                       [](const Value& value) { return value.final; });
  }

  std::string compute(const Step& step) {
    std::vector<Value> sum;
    for (const Slice& source : schedule_.sources_of(step)) {
      const std::vector<Value> next = read(source);
      const bool adds = step.verb == Verb::reduce && !sum.empty();
      const std::size_t begin = adds ? 0 : sum.size();
      if (!adds) sum.insert(sum.end(), next.begin(), next.end());
      if (adds ? next.size() != sum.size() : sum.size() > step.to.parts) {
        return "sources and target differ in parts";
      }
      if (step.verb != Verb::reduce && !step.final && source.wide != step.to.wide) {
        return "copies to another width";
      }
      for (std::size_t i = 0; i < next.size(); ++i) {
        const int wanted = content(step.to.first_part + static_cast<int>(begin + i));
        if (wanted != Outcome::kAnything && next[i].content != wanted) {
          return cat("reads part ", next[i].content, " where part ", wanted, " belongs");
        }
        if (next[i].wide != source.wide) return "takes 16 bits for 32, or 32 for 16";
        if (next[i].final && (step.verb == Verb::reduce || step.final)) {
          return "adds to a result that was already rounded";
        }
        if (adds) merge(sum[i], next[i]);
      }
    }
    if (sum.size() != step.to.parts) return "sources and target differ in parts";
    if (step.to.wide && (step.final || !schedule_.wide_sums)) return "a wide result";
    if (step.verb == Verb::reduce && schedule_.wide_sums && step.to.wide == step.final) {
      return "rounds a sum that is not whole";
    }
    if (step.verb == Verb::reduce && step.sources > 2) check_tree(step, sum);
    for (Value& value : sum) {
      value.final = value.final || step.final;
      value.wide = step.to.wide;
    }
    write(step.to, sum);
    return "";
  }

 private:
  void merge(Value& left, const Value& right) {
    const auto a = range_of(left), b = range_of(right);
    left.canonical = left.canonical && right.canonical && a && b && a->second == b->first &&
                     is_tree_node(a->first, b->second, 0, outcome_.ranks());
    for (int r = 0; r < outcome_.ranks(); ++r) left.contributions[r] += right.contributions[r];
  }

  // An n-ary reduce evaluates its own tree over its sources. The sum is canonical if these are
  // all the single ranks below one node of the canonical tree, in order.
  void check_tree(const Step& step, std::vector<Value>& sum) {
    const std::span<const Slice> sources = schedule_.sources_of(step);
    const auto all = range_of(sum.front());
    const bool is_node = all && is_tree_node(all->first, all->second, 0, outcome_.ranks());
    for (Value& value : sum) value.canonical = is_node;
    for (std::size_t i = 0; is_node && i < sources.size(); ++i) {
      const int rank = all->first + static_cast<int>(i);
      for (const Value& value : read(sources[i])) {
        if (range_of(value) == std::pair(rank, rank + 1)) continue;
        for (Value& result : sum) result.canonical = false;
      }
    }
  }

  const Schedule& schedule_;
  const Outcome& outcome_;
  std::unordered_map<uint64_t, Value> cells_;
  std::vector<uint16_t> waits_for_;
  std::vector<std::vector<std::size_t>> successors_;
  std::vector<uint16_t> unread_;
  std::vector<bool> done_;
};

// Finds two steps that touch one slice, one of them writing, while neither waits for the other.
std::string find_race(const Schedule& schedule) {
  const std::size_t count = schedule.steps.size();
  std::vector<Bits> before(count, Bits(count));
  struct Access {
    std::size_t step;
    bool writes;
  };
  std::unordered_map<uint64_t, std::vector<Access>> by_cell;
  for (std::size_t i = 0; i < count; ++i) {
    const Step& step = schedule.steps[i];
    for (uint16_t after : schedule.afters_of(step)) {
      if (after >= i) return cat("step ", i, " waits for the later step ", after);
      before[i].add(after);
      before[i].add(before[after]);
    }
    const auto note = [&](const Slice& slice, bool writes) -> std::string {
      for (int part = 0; part < slice.parts; ++part) {
        std::vector<Access>& accesses = by_cell[cell(slice, part)];
        for (const Access& earlier : accesses) {
          if (earlier.step == i || before[i].contains(earlier.step)) continue;
          if (writes || earlier.writes) {
            return cat("steps ", earlier.step, " and ", i,
                       " touch one slice and neither waits for the other");
          }
        }
        accesses.push_back({i, writes});
      }
      return "";
    };
    std::string race = note(step.to, writes(step));
    for (const Slice& source : schedule.sources_of(step)) {
      if (race.empty()) race = note(source, false);
    }
    if (!race.empty()) return race;
  }
  return "";
}

// Runs all ranks together. A step runs when the steps before it are done. A transfer also needs its
// other side.
class Execution {
 public:
  explicit Execution(std::vector<Machine>& machines) : machines_(machines) {}

  // Runs all steps that can run. Returns the first complaint, or "".
  std::string run() {
    for (int rank = 0; rank < static_cast<int>(machines_.size()); ++rank) {
      for (std::size_t i = 0; i < machines_[rank].schedule().steps.size(); ++i) {
        if (machines_[rank].is_ready(i)) ready_.push_back({rank, i});
      }
    }
    while (!ready_.empty()) {
      const At at = ready_.front();
      ready_.pop_front();
      std::string complaint = advance(at);
      if (!complaint.empty()) return complaint;
    }
    for (std::size_t rank = 0; rank < machines_.size(); ++rank) {
      for (std::size_t i = 0; i < machines_[rank].schedule().steps.size(); ++i) {
        if (!machines_[rank].is_done(i)) return cat("rank ", rank, " never gets past step ", i);
      }
    }
    return "";
  }

 private:
  struct At {
    int rank;
    std::size_t step;
  };
  struct Channel {  // one direction of a pair: the steps that are ready, by ordinal
    std::unordered_map<uint16_t, std::size_t> sends, receives;
  };

  std::string advance(At at) {
    Machine& machine = machines_[at.rank];
    const Step& step = machine.step(at.step);
    if (!computes(step.verb)) {
      const bool out = sends(step.verb);
      const auto pair = out ? std::pair(at.rank, step.peer) : std::pair(step.peer, at.rank);
      Channel& channel = channels_[pair];
      (out ? channel.sends : channel.receives)[step.ordinal] = at.step;
      const auto send = channel.sends.find(step.ordinal);
      const auto receive = channel.receives.find(step.ordinal);
      if (send == channel.sends.end() || receive == channel.receives.end()) return "";
      return move({pair.first, send->second}, {pair.second, receive->second});
    }
    const std::string complaint = machine.compute(step);
    if (!complaint.empty()) return cat("rank ", at.rank, " step ", at.step, ": ", complaint);
    finish(at);
    if (step.to.space == Space::view && !shown_to(at.rank, step.to.slot).lends) {
      return cat("rank ", at.rank, " step ", at.step, " writes to memory that is not lent");
    }
    machine.schedule().each_view(step, [&](uint16_t await) { release(at.rank, await); });
    return "";
  }

  const Step& shown_to(int rank, uint16_t await) const {
    const At& owner = shown_by_.at({rank, await});
    return machines_[owner.rank].step(owner.step);
  }
  // A step no longer needs the view. After the last one the owner has what was written to it.
  void release(int rank, uint16_t await) {
    if (--machines_[rank].unread(await) > 0) return;
    const At owner = shown_by_.at({rank, await});
    const Step& shown = shown_to(rank, await);
    const Slice view{Space::view, await, shown.to.first_part, shown.to.parts, shown.to.wide};
    if (shown.lends) machines_[owner.rank].write(shown.to, machines_[rank].read(view));
    finish(owner);
  }

  std::string move(At send, At receive) {
    Machine& from = machines_[send.rank];
    Machine& to = machines_[receive.rank];
    const Slice& target = to.step(receive.step).to;
    const std::vector<Value> values = from.read(from.step(send.step).to);
    if (values.size() != target.parts) {
      return cat("rank ", send.rank, " step ", send.step, " sends ", values.size(),
                 " parts to rank ", receive.rank, " step ", receive.step, ", which expects ",
                 target.parts);
    }
    const bool shown = from.step(send.step).verb == Verb::publish;
    if (shown != (target.space == Space::view)) {
      return cat("rank ", send.rank, " step ", send.step, " and rank ", receive.rank, " step ",
                 receive.step, " disagree whether memory is published or sent");
    }
    for (const Value& value : values) {
      if (value.wide == from.step(send.step).to.wide && value.wide == target.wide) continue;
      return cat("rank ", send.rank, " step ", send.step, " and rank ", receive.rank, " step ",
                 receive.step, " disagree about the width of a sum");
    }
    to.write(target, values);
    // In memory that ranks share, a message has no bytes: from now on its slice holds the data.
    for (const Slice& there : from.schedule().sources_of(from.step(send.step))) {
      if (to.holds_result(there)) {
        return cat("rank ", receive.rank, " has a result already where rank ", send.rank, " step ",
                   send.step, " says that it has put one");
      }
      to.write(there, from.read(there));
    }
    finish(receive);
    // Published memory may not change until every step that reads the view is done.
    if (shown && to.unread(receive.step) > 0) {
      shown_by_.emplace(std::pair(receive.rank, static_cast<uint16_t>(receive.step)), send);
    } else {
      finish(send);
    }
    return "";
  }

  void finish(At at) {
    for (std::size_t step : machines_[at.rank].finish(at.step)) ready_.push_back({at.rank, step});
  }

  std::vector<Machine>& machines_;
  std::deque<At> ready_;
  std::map<std::pair<int, int>, Channel> channels_;  // by sender and receiver
  std::map<std::pair<int, uint16_t>, At> shown_by_;  // by reader and its await: the publish
};

std::string check_result(const Machine& machine, const Outcome& outcome, bool canonical) {
  const Schedule& schedule = machine.schedule();
  for (int part = 0; part < schedule.parts; ++part) {
    if (!outcome.ends_with(schedule.rank, part)) continue;
    const Slice slice{Space::output, 0, static_cast<uint16_t>(part), 1};
    const Value value = machine.read(slice).front();
    if (value.content != machine.content(part) ||
        value.contributions != outcome.contributions(part)) {
      std::vector<int> counts(value.contributions.begin(), value.contributions.end());
      return cat("rank ", schedule.rank, " ends with part ", part, " holding part ", value.content,
                 " with each rank's contribution ", join(counts, ","), " times");
    }
    if (!is_sum(outcome.result())) continue;
    if (!value.final) return cat("rank ", schedule.rank, " never rounds part ", part);
    if (canonical && !value.canonical) {
      return cat("rank ", schedule.rank, " sums part ", part,
                 " in another than the canonical order");
    }
  }
  return "";
}

}  // namespace

std::string verify(const std::vector<Schedule>& schedules, AlgorithmRow::Result result, int root,
                   bool canonical) {
  const Outcome outcome(result, schedules.front().ranks, root);
  std::vector<Machine> machines;
  machines.reserve(schedules.size());
  for (const Schedule& schedule : schedules) {
    const std::string race = find_race(schedule);
    if (!race.empty()) return cat("rank ", schedule.rank, ": ", race);
    machines.emplace_back(schedule, outcome);
  }
  std::string complaint = Execution(machines).run();
  for (const Machine& machine : machines) {
    if (complaint.empty()) complaint = check_result(machine, outcome, canonical);
  }
  return complaint;
}

}  // namespace rdmacoll
