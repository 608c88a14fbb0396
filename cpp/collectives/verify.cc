#include "collectives/verify.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include "base/text.h"
#include "collectives/builder.h"

namespace rdmacoll {
namespace {

// What a part holds: the sum over [first, last) when it was built in canonical order, and in any
// case the multiset of contributions.
struct Value {
  int part = -1;
  std::vector<uint8_t> contributions;  // how often each rank is in it
  bool canonical = true;
  bool final = false;

  bool operator==(const Value&) const = default;
};

int largest_power_below(int count) {
  int power = 1;
  while (power * 2 < count) power *= 2;
  return power;
}

// The ranks in it, if they are consecutive.
std::optional<std::pair<int, int>> range_of(const Value& value) {
  const auto& c = value.contributions;
  const auto first = std::find(c.begin(), c.end(), 1);
  const auto last = std::find(first, c.end(), 0);
  if (first == c.end() || std::find(last, c.end(), 1) != c.end()) return std::nullopt;
  return std::pair(static_cast<int>(first - c.begin()), static_cast<int>(last - c.begin()));
}

// Would the canonical tree over `all` ranks have exactly this node?
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

using Cell = std::tuple<Space, int, int>;  // space (input = output), slot, part

class Machine {
 public:
  Machine(const Schedule& schedule, AlgorithmRow::Result result, int root)
      : schedule_(schedule), done_(schedule.steps.size(), false), left_(schedule.steps.size()) {
    for (int part = 0; part < schedule.parts; ++part) {
      const bool has = result == AlgorithmRow::Result::sum ||
                       (result == AlgorithmRow::Result::root_value && schedule.rank == root) ||
                       (result == AlgorithmRow::Result::concatenation && schedule.rank == part);
      if (!has) continue;
      Value value{part, std::vector<uint8_t>(schedule.ranks, 0), true, false};
      value.contributions[schedule.rank] = 1;
      cells_[{Space::input, 0, part}] = value;
    }
  }

  bool finished() const { return left_ == 0; }
  bool done(std::size_t step) const { return done_[step]; }
  bool ready(std::size_t step) const {
    if (done_[step]) return false;
    const auto afters = schedule_.afters_of(schedule_.steps[step]);
    return std::all_of(afters.begin(), afters.end(), [&](uint16_t after) { return done_[after]; });
  }
  void finish(std::size_t step) {
    done_[step] = true;
    --left_;
  }

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

  const Schedule& schedule() const { return schedule_; }

  std::string compute(std::size_t index) {
    const Step& step = schedule_.steps[index];
    std::vector<Value> sum;
    for (const Slice& source : schedule_.sources_of(step)) {
      const std::vector<Value> next = read(source);
      if (next.size() != step.to.parts) return "sources and target differ in parts";
      for (std::size_t i = 0; i < next.size(); ++i) {
        if (next[i].part != step.to.first_part + static_cast<int>(i)) {
          return cat("reads part ", next[i].part, " where part ", step.to.first_part + i,
                     " belongs");
        }
        if (next[i].final && (step.verb == Verb::reduce || step.final)) {
          return "adds to a result that was already rounded";
        }
      }
      if (sum.empty()) {
        sum = next;
      } else {
        for (std::size_t i = 0; i < next.size(); ++i) merge(sum[i], next[i]);
      }
    }
    if (step.verb == Verb::reduce && step.sources > 2) check_tree(step, sum);
    for (Value& value : sum) value.final = value.final || step.final;
    write(step.to, sum);
    finish(index);
    return "";
  }

 private:
  static Cell cell(const Slice& slice, int i) {
    const Space space = slice.space == Space::output ? Space::input : slice.space;
    return {space, slice.slot, slice.first_part + i};
  }

  void merge(Value& left, const Value& right) {
    const auto a = range_of(left), b = range_of(right);
    left.canonical = left.canonical && right.canonical && a && b && a->second == b->first &&
                     is_tree_node(a->first, b->second, 0, schedule_.ranks);
    for (int r = 0; r < schedule_.ranks; ++r) left.contributions[r] += right.contributions[r];
  }

  // An n-ary reduce evaluates its own tree over its sources: canonical when these are all the
  // single ranks in order.
  void check_tree(const Step& step, std::vector<Value>& sum) {
    for (Value& value : sum) value.canonical = true;
    int expected = 0;
    for (const Slice& source : schedule_.sources_of(step)) {
      for (const Value& value : read(source)) {
        const auto range = range_of(value);
        if (!range || *range != std::pair(expected, expected + 1)) {
          for (Value& result : sum) result.canonical = false;
        }
      }
      ++expected;
    }
  }

  const Schedule& schedule_;
  std::map<Cell, Value> cells_;
  std::vector<bool> done_;
  std::size_t left_;
};

std::string find_race(const Schedule& schedule) {
  const std::size_t count = schedule.steps.size();
  std::vector<std::vector<bool>> before(count, std::vector<bool>(count, false));
  for (std::size_t i = 0; i < count; ++i) {
    for (uint16_t after : schedule.afters_of(schedule.steps[i])) {
      if (after >= i) return cat("step ", i, " waits for the later step ", after);
      before[i][after] = true;
      for (std::size_t j = 0; j < after; ++j) before[i][j] = before[i][j] || before[after][j];
    }
  }
  struct Access {
    Slice slice;
    bool write;
  };
  const auto accesses = [&](const Step& step) {
    std::vector<Access> list{{step.to, !sends(step.verb)}};
    for (const Slice& source : schedule.sources_of(step)) list.push_back({source, false});
    return list;
  };
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (before[i][j]) continue;
      for (const Access& a : accesses(schedule.steps[i])) {
        for (const Access& b : accesses(schedule.steps[j])) {
          if ((a.write || b.write) && overlap(a.slice, b.slice)) {
            return cat("steps ", j, " and ", i, " touch one slice and neither waits for the other");
          }
        }
      }
    }
  }
  return "";
}

// A publication that the peer has seen; it ends when every step that reads the view has been done.
struct OpenView {
  int publisher, reader;
  std::size_t publish;
  Slice view;
};

bool is_read(const Machine& reader, const Slice& view) {
  const Schedule& schedule = reader.schedule();
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    for (const Slice& source : schedule.sources_of(schedule.steps[i])) {
      if (source.space == Space::view && source.slot == view.slot && !reader.done(i)) return false;
    }
  }
  return true;
}

// Moves everything that can move; returns the first complaint.
std::string execute(std::vector<Machine>& machines) {
  using Pair = std::pair<int, int>;
  std::vector<OpenView> open;
  std::set<Pair> published;  // rank and step
  for (bool moved = true; moved;) {
    moved = std::erase_if(open, [&](const OpenView& view) {
              if (!is_read(machines[view.reader], view.view)) return false;
              machines[view.publisher].finish(view.publish);
              return true;
            }) > 0;
    std::map<Pair, std::map<int, std::size_t>> sending, receiving;  // by ordinal
    for (std::size_t rank = 0; rank < machines.size(); ++rank) {
      Machine& machine = machines[rank];
      for (std::size_t i = 0; i < machine.schedule().steps.size(); ++i) {
        if (!machine.ready(i) ||
            published.contains({static_cast<int>(rank), static_cast<int>(i)})) {
          continue;
        }
        const Step& step = machine.schedule().steps[i];
        const int self = static_cast<int>(rank);
        if (sends(step.verb)) {
          sending[{self, step.peer}][step.ordinal] = i;
        } else if (receives(step.verb)) {
          receiving[{step.peer, self}][step.ordinal] = i;
        } else {
          const std::string complaint = machine.compute(i);
          if (!complaint.empty()) return cat("rank ", rank, " step ", i, ": ", complaint);
          moved = true;
        }
      }
    }
    for (const auto& [pair, sends_of_pair] : sending) {
      for (const auto& [ordinal, send] : sends_of_pair) {
        const auto& receives_of_pair = receiving[pair];
        const auto receive = receives_of_pair.find(ordinal);
        if (receive == receives_of_pair.end()) continue;
        Machine& from = machines[pair.first];
        Machine& to = machines[pair.second];
        const Slice& target = to.schedule().steps[receive->second].to;
        const std::vector<Value> values = from.read(from.schedule().steps[send].to);
        if (values.size() != target.parts) {
          return cat("rank ", pair.first, " step ", send, " sends ", values.size(),
                     " parts to rank ", pair.second, " step ", receive->second, ", which expects ",
                     target.parts);
        }
        const bool shown = from.schedule().steps[send].verb == Verb::publish;
        if (shown != (target.space == Space::view)) {
          return cat("rank ", pair.first, " step ", send, " and rank ", pair.second, " step ",
                     receive->second, " disagree whether memory is shown or sent");
        }
        to.write(target, values);
        to.finish(receive->second);
        if (shown) {
          open.push_back({pair.first, pair.second, send, target});
          published.emplace(pair.first, static_cast<int>(send));
        } else {
          from.finish(send);
        }
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < machines.size(); ++rank) {
    if (machines[rank].finished()) continue;
    for (std::size_t i = 0; i < machines[rank].schedule().steps.size(); ++i) {
      if (!machines[rank].done(i)) return cat("rank ", rank, " never gets past step ", i);
    }
  }
  return "";
}

std::string check_result(const Machine& machine, AlgorithmRow::Result result, int root,
                         bool canonical) {
  const Schedule& schedule = machine.schedule();
  for (int part = 0; part < schedule.parts; ++part) {
    Slice slice{Space::output, 0, static_cast<uint16_t>(part), 1};
    const Value value = machine.read(slice).front();
    std::vector<uint8_t> expected(schedule.ranks, 0);
    if (result == AlgorithmRow::Result::sum) std::fill(expected.begin(), expected.end(), 1);
    if (result == AlgorithmRow::Result::root_value) expected[root] = 1;
    if (result == AlgorithmRow::Result::concatenation) expected[part] = 1;
    if (value.part != part || value.contributions != expected) {
      std::vector<int> counts(value.contributions.begin(), value.contributions.end());
      return cat("rank ", schedule.rank, " ends with part ", part, " holding part ", value.part,
                 " with each rank's contribution ", join(counts, ","), " times");
    }
    if (result == AlgorithmRow::Result::sum && !value.final) {
      return cat("rank ", schedule.rank, " never rounds part ", part);
    }
    if (result == AlgorithmRow::Result::sum && canonical && !value.canonical) {
      return cat("rank ", schedule.rank, " sums part ", part,
                 " in another than the canonical order");
    }
  }
  return "";
}

}  // namespace

std::string verify(const std::vector<Schedule>& schedules, AlgorithmRow::Result result, int root,
                   bool canonical) {
  std::vector<Machine> machines;
  machines.reserve(schedules.size());
  for (const Schedule& schedule : schedules) {
    const std::string race = find_race(schedule);
    if (!race.empty()) return cat("rank ", schedule.rank, ": ", race);
    machines.emplace_back(schedule, result, root);
  }
  std::string complaint = execute(machines);
  for (const Machine& machine : machines) {
    if (complaint.empty()) complaint = check_result(machine, result, root, canonical);
  }
  return complaint;
}

}  // namespace rdmacoll
