#include "sim/joins.h"

#include <algorithm>

#include "base/text.h"
#include "sim/variety.h"

namespace rdmacoll {
namespace {

// A sum or a barrier. Sometimes an operation that needs data of every rank, and is refused if ranks
// have joined.
SimOperation make_sum(RandomSource& random, std::size_t set, std::size_t index) {
  SimOperation sum;
  sum.set = set;
  if (!random.chance(0.3)) sum.name = cat("uneven", index);
  if (random.chance(0.1)) {
    sum.kind = random.chance(0.5) ? Kind::barrier : Kind::broadcast;
  }
  if (sum.kind == Kind::barrier) return sum;
  sum.dtype = random.one_of(std::array{Dtype::float32, Dtype::int32, Dtype::float64});
  sum.op = random.one_of(std::array{ReduceOp::sum, ReduceOp::sum, ReduceOp::average,
                                    ReduceOp::average, ReduceOp::max, ReduceOp::max});
  if (is_integer(sum.dtype) && sum.op == ReduceOp::average) sum.op = ReduceOp::sum;
  if (sum.op == ReduceOp::sum && random.chance(0.1)) sum.prescale = 2.0;
  const int64_t tensors = random.between(1, 3);
  for (int64_t i = 0; i < tensors; ++i) {
    sum.shapes.push_back({random.chance(0.05) ? 0 : random.between(1, 300)});
  }
  return sum;
}

// One phase. A rank that has joined may be the first to submit some of it.
std::vector<std::vector<SimOperation>> make_heap(RandomSource& random, std::size_t set) {
  std::vector<SimOperation> heap;
  for (int64_t sums = random.between(0, 6); sums > 0; --sums) {
    heap.push_back(make_sum(random, set, heap.size()));
  }
  return {std::move(heap)};
}

// Several equal steps, so that ranks follow a plan when one of them joins.
std::vector<std::vector<SimOperation>> make_steps(RandomSource& random, std::size_t set) {
  std::vector<SimOperation> step;
  for (int64_t sums = random.between(1, 3); sums > 0; --sums) {
    step.push_back(make_sum(random, set, step.size()));
  }
  return {static_cast<std::size_t>(random.between(2, 14)), std::move(step)};
}

bool is_of_join(const SimOperation& operation) {
  return operation.kind == Kind::join || operation.givers > 0;
}

// Whether some ranks may have no part in this phase, and wait in the join that follows.
bool is_before_join(const std::vector<SimOperation>& phase) {
  return phase.back().kind != Kind::join && is_of_join(phase.front());
}

void take_givers_away(RandomSource& random, int ranks,
                      std::vector<std::vector<SimOperation>>& phases) {
  const int first = static_cast<int>(random.between(0, ranks - 1));
  int givers = ranks;
  // A step is not divided. A rank that waits for a part of it could not catch up with the rest.
  const bool is_heap = phases.size() == 1;
  // The first phases have data of all ranks. They often suffice for a plan before the first rank
  // joins.
  const auto last = static_cast<int64_t>(phases.size()) - 1;
  const auto even = static_cast<std::size_t>(
      random.chance(0.6) ? std::max<int64_t>(0, last - random.between(0, 2)) : 0);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const bool is_first = even > 0 && i == even;
    if (is_first || (i >= even && random.chance(0.3)))
      givers = static_cast<int>(random.between(1, givers));
    for (SimOperation& operation : phases[i]) {
      if (is_heap && random.chance(0.3)) givers = static_cast<int>(random.between(1, givers));
      operation.givers = givers;
      operation.first_giver = first;
    }
  }
}

}  // namespace

void make_joins(RandomSource random, RandomSource& variety, SimScript& script) {
  if (!random.chance(0.4)) return;
  for (int64_t joins = random.between(1, 3); joins > 0; --joins) {
    const auto sets = static_cast<int64_t>(script.first_sets);
    const auto set = static_cast<std::size_t>(random.between(0, sets));
    const bool is_heap = random.chance(script.plan_repeats > 0 ? 0.3 : 0.5);
    auto phases = is_heap ? make_heap(random, set) : make_steps(random, set);
    vary(variety, phases.front());  // the same in each step
    std::fill(phases.begin() + 1, phases.end(), phases.front());
    take_givers_away(random, script.ranks_of(set), phases);
    phases.back().push_back({.kind = Kind::join, .set = set});
    const auto last = static_cast<int64_t>(script.phases.size());
    auto at = static_cast<std::size_t>(random.between(0, last));
    while (at > 0 && is_before_join(script.phases[at - 1])) ++at;
    script.insert(at, phases);
  }
}

bool affects_joins(const SimScript& script) {
  const auto is_touched = [&](const std::vector<SimOperation>& phase) {
    return std::any_of(phase.begin(), phase.end(), is_of_join);
  };
  if (script.fault == Fault::missing) {
    return std::any_of(script.phases.begin(), script.phases.end(), is_touched);
  }
  const bool changes_operation = script.fault == Fault::mismatch || script.fault == Fault::refuse;
  return changes_operation && is_touched(script.phases[script.fault_phase]);
}

}  // namespace rdmacoll
