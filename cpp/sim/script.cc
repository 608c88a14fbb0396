#include "sim/script.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/text.h"
#include "collectives/algorithms.h"
#include "sim/joins.h"
#include "sim/limit.h"
#include "sim/random_source.h"
#include "sim/variety.h"

namespace rdmacoll {
namespace {

std::vector<int64_t> make_shape(RandomSource& random) {
  std::vector<int64_t> shape;
  for (int64_t dims = random.between(0, 3); dims > 0; --dims) {
    shape.push_back(random.chance(0.05) ? 0 : random.between(1, 14));
  }
  return shape;
}

SimOperation make_operation(RandomSource& random, int ranks, std::size_t index) {
  SimOperation operation;
  if (!random.chance(0.3)) operation.name = cat("tensor", index);
  operation.kind =
      random.one_of(std::array{Kind::allreduce, Kind::allreduce, Kind::allreduce, Kind::allreduce,
                               Kind::broadcast, Kind::allgather, Kind::barrier, Kind::reducescatter,
                               Kind::alltoall, Kind::reduce, Kind::gather, Kind::scatter});
  operation.dtype = random.one_of(
      std::array{Dtype::float32, Dtype::float32, Dtype::int32, Dtype::float64, Dtype::int64});
  if (operation.kind == Kind::barrier) return operation;
  operation.root = static_cast<int>(random.between(0, ranks - 1));
  operation.op = random.one_of(
      std::array{ReduceOp::sum, ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max});
  if (operation.op == ReduceOp::average && is_integer(operation.dtype))
    operation.op = ReduceOp::sum;
  const KindRow& kind = row_of(operation.kind);
  if (kind.reduces && operation.op == ReduceOp::sum && random.chance(0.1)) {
    operation.prescale = 2.0;
  }
  const int64_t tensors = kind.takes_groups ? random.between(1, 4) : 1;
  for (int64_t i = 0; i < tensors; ++i) {
    operation.shapes.push_back(make_shape(random));
    if (operation.kind == Kind::reducescatter) {
      operation.shapes.back().insert(operation.shapes.back().begin(), random.between(0, 40));
      operation.shapes.back().resize(std::min<std::size_t>(operation.shapes.back().size(), 3));
    }
  }
  if (kind.first_may_differ) {
    const bool is_split = operation.kind == Kind::alltoall || operation.kind == Kind::scatter;
    for (int rank = 0; rank < ranks; ++rank) {
      auto& rows = operation.rows.emplace_back(is_split ? ranks : tensors);
      for (int64_t& number : rows) number = random.chance(0.2) ? 0 : random.between(0, 9);
    }
  }
  return operation;
}

// make_algorithm() draws from the automatic choice and the algorithms that sum. Those from this
// number on are newer, and drawn separately, so that existing seeds keep their meaning.
constexpr Algorithm kFirstDrawnApart{19};

// The names, by the numbers on the wire.
std::vector<std::string> algorithms_that_sum(bool are_drawn_apart) {
  std::map<Algorithm, std::string> names;
  for (const AlgorithmRow& row : algorithm_table()) {
    const bool is_apart = row.algorithm >= kFirstDrawnApart;
    if (row.can_be_forced() && is_apart == are_drawn_apart) names[row.algorithm] = row.name;
  }
  std::vector<std::string> sorted;
  for (const auto& [number, name] : names) sorted.push_back(name);
  return sorted;
}

std::string make_algorithm(RandomSource& random) {
  std::vector<std::string> names = algorithms_that_sum(false);
  names.insert(names.begin(), "");
  const auto last = static_cast<int64_t>(names.size()) - 1;
  return names[static_cast<std::size_t>(random.between(0, last))];
}

// A random proper subset of the ranks, ascending.
std::vector<int> make_set(RandomSource& random, int ranks) {
  std::vector<int> set;
  while (set.empty() || static_cast<int>(set.size()) == ranks) {
    set.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      if (random.chance(0.5)) set.push_back(rank);
    }
  }
  return set;
}

// Sets may overlap. Operations of all sets run at the same time.
void make_sets(uint64_t seed, SimScript& script) {
  RandomSource random(seed, 2);
  if (script.ranks == 1 || !random.chance(0.4)) return;
  for (int64_t sets = random.between(1, 4); sets > 0; --sets) {
    std::vector<int> set = make_set(random, script.ranks);
    const bool is_new = std::find(script.sets.begin(), script.sets.end(), set) == script.sets.end();
    if (is_new) script.sets.push_back(std::move(set));
  }
  script.first_sets = script.sets.size();
  for (auto& phase : script.phases) {
    for (std::size_t i = 0; i < phase.size(); ++i) {
      const auto set =
          static_cast<std::size_t>(random.between(0, static_cast<int64_t>(script.sets.size())));
      if (set == 0) continue;
      phase[i] = make_operation(random, script.ranks_of(set), i);
      phase[i].set = set;
    }
  }
}

// Sets are added and removed, with barriers of all ranks around each change, as in
// rdmacoll/engine/process_sets.py.
void make_set_changes(RandomSource random, RandomSource& variety, SimScript& script) {
  if (script.ranks == 1 || !random.chance(0.3)) return;
  const std::vector<SimOperation> barrier = {{.kind = Kind::barrier}};
  auto there = script.sets;
  std::size_t at = 0;
  const auto change = [&](std::size_t set, bool is_removed) {
    script.insert(at, {barrier, barrier});
    script.changes.push_back({at + 1, set, is_removed});
    at += 2;
  };
  for (int64_t sets = random.between(1, 4); sets > 0; --sets) {
    const auto left = static_cast<int64_t>(script.phases.size() - at);
    at += static_cast<std::size_t>(random.between(0, left));
    std::vector<int> ranks = make_set(random, script.ranks);
    if (std::find(there.begin(), there.end(), ranks) != there.end()) continue;
    script.sets.push_back(ranks);
    const std::size_t set = script.sets.size();
    change(set, false);
    std::vector<SimOperation> phase;
    for (int64_t operations = random.between(1, 4); operations > 0; --operations) {
      const std::size_t its = random.chance(0.7) ? set : 0;
      phase.push_back(make_operation(random, script.ranks_of(its), phase.size()));
      phase.back().set = its;
    }
    vary(variety, phase);
    const auto times = static_cast<std::size_t>(random.between(1, 6));
    script.insert(at, {times, phase});
    at += times;
    if (random.chance(0.7)) {
      change(set, true);
    } else {
      there.push_back(std::move(ranks));
    }
  }
}

// The barriers around a change must not fail on some ranks only.
bool spoils_changes(const SimScript& script, const SimOperation& target) {
  if (script.changes.empty()) return false;
  return script.fault == Fault::missing ||
         (script.fault == Fault::mismatch && target.kind == Kind::barrier);
}

// A rank that leaves ends the operations of all sets. So no rank leaves before all are done.
void make_end(SimScript& script) {
  if (!script.sets.empty()) script.phases.push_back({{.kind = Kind::barrier}});
}

// Sometimes a rank sends another number of rows than in the repetitions before.
void change_rows(RandomSource& random, SimScript& script) {
  std::vector<std::vector<int64_t>*> said;
  for (auto& phase : script.phases) {
    for (SimOperation& operation : phase) {
      for (auto& rows : operation.rows) said.push_back(&rows);
    }
  }
  const auto last = static_cast<int64_t>(said.size()) - 1;
  for (int64_t changes = last < 0 ? 0 : random.between(0, 5); changes > 0; --changes) {
    auto& rows = *said[static_cast<std::size_t>(random.between(0, last))];
    rows[static_cast<std::size_t>(random.between(0, static_cast<int64_t>(rows.size()) - 1))] += 2;
  }
}

// A training: a few phases are repeated, often only sums, so that ranks follow a plan. Sometimes
// another operation comes, while other ranks have already started the planned one.
void make_repetitions(uint64_t seed, RandomSource& random, SimScript& script) {
  RandomSource kinds(seed, 6);
  script.plan_repeats = static_cast<uint64_t>(random.one_of(std::array<int64_t, 4>{0, 2, 2, 3}));
  if (script.plan_repeats == 0) return;
  const bool has_all_kinds = kinds.chance(0.5);
  const bool only_sums = random.chance(0.8) && !has_all_kinds;
  for (auto& phase : script.phases) {
    for (SimOperation& operation : phase) {
      if (only_sums && operation.kind != Kind::allreduce) operation.kind = Kind::allreduce;
      if (operation.kind != Kind::allreduce) continue;
      operation.rows.clear();
      if (operation.shapes.empty()) operation.shapes = {{3}};
      if (!is_reducible(operation.dtype, operation.op)) operation.dtype = Dtype::float32;
    }
  }
  const auto period = script.phases;
  const int64_t most = script.ranks > 8 ? 5 : 12;  // with many ranks each turn takes long
  const auto repeat = [&](int64_t times) {
    for (; times > 0; --times) {
      script.phases.insert(script.phases.end(), period.begin(), period.end());
    }
  };
  repeat(random.between(2, most));
  for (int64_t surprises = random.between(0, 3); surprises > 0; --surprises) {
    auto phase = random.chance(0.3) ? std::vector<SimOperation>{} : period.front();
    phase.push_back(make_operation(random, script.ranks, 90));
    script.phases.push_back(std::move(phase));
    repeat(random.between(0, most / 2));
  }
  if (has_all_kinds) change_rows(kinds, script);
}

// Chooses an operation for whose results the engine asks the caller. It keeps the target, and so a
// plan, or replaces it.
void make_refusal(RandomSource random, SimOperation& target, int ranks) {
  const bool asks = row_of(target.kind).makes_result || target.kind == Kind::allreduce;
  if (asks && random.chance(0.5)) return;
  target.kind = random.one_of(std::array{Kind::allreduce, Kind::allgather, Kind::reducescatter,
                                         Kind::alltoall, Kind::gather, Kind::scatter});
  const KindRow& kind = row_of(target.kind);
  target.dtype = Dtype::float32;
  target.op = ReduceOp::sum;
  target.shapes = {{random.between(1, 9)}};
  target.rows.clear();
  if (!kind.first_may_differ) return;
  const bool is_split = target.kind == Kind::alltoall || target.kind == Kind::scatter;
  target.rows.assign(ranks, std::vector<int64_t>(is_split ? ranks : 1, random.between(1, 9)));
}

void make_fault(RandomSource& random, const RandomSource& refusals, SimScript& script) {
  script.fault = random.one_of(
      std::array{Fault::none, Fault::none, Fault::none, Fault::none, Fault::kill, Fault::kill,
                 Fault::nap, Fault::stop, Fault::cut, Fault::unplug, Fault::mismatch,
                 Fault::missing, Fault::leave, Fault::exhaust, Fault::dry, Fault::refuse});
  if (script.ranks == 1) script.fault = Fault::none;
  script.victim = static_cast<int>(random.between(0, script.ranks - 1));
  script.partner =
      (script.victim + static_cast<int>(random.between(1, std::max(1, script.ranks - 1)))) %
      script.ranks;
  const int64_t longest = script.phases.size() > 4 ? 12'000 : 3'000;
  script.fault_at = random.between(0, longest) * kMicrosecond;
  script.pause = script.fault == Fault::stop ? 3 * script.network.peer_timeout
                                             : script.network.peer_timeout / 3;
  script.fault_phase =
      static_cast<std::size_t>(random.between(0, static_cast<int64_t>(script.phases.size()) - 1));
  auto& phase = script.phases[script.fault_phase];
  script.fault_operation =
      static_cast<std::size_t>(random.between(0, static_cast<int64_t>(phase.size()) - 1));
  if (affects_joins(script) || spoils_changes(script, phase[script.fault_operation])) {
    script.fault = Fault::none;
  }
  const std::size_t set = phase[script.fault_operation].set;
  if (script.rank_in(set, script.victim) < 0) script.victim = script.sets[set - 1].back();
  if (script.fault == Fault::mismatch) {
    // A mismatch needs an operation that has a shape.
    SimOperation& target = phase[script.fault_operation];
    target.kind = Kind::allreduce;
    target.dtype = Dtype::float32;
    target.op = ReduceOp::sum;
    target.shapes = {{random.between(1, 50)}};
    target.rows.clear();
  }
  if (script.fault == Fault::refuse) {
    SimOperation& target = phase[script.fault_operation];
    make_refusal(refusals, target, script.ranks_of(target.set));
  }
  if (script.fault == Fault::missing) {
    // A missing unnamed operation would shift the numbers of all later ones, and cause a mismatch.
    phase[script.fault_operation].name = "missing";
  }
}

// Adds servers, which make the sums. Sometimes a server is the victim.
void make_servers(RandomSource random, SimScript& script) {
  if (!random.chance(0.25)) return;
  script.servers = static_cast<int>(random.between(1, 3));
  const int server = script.ranks + static_cast<int>(random.between(0, script.servers - 1));
  const bool is_struck = random.chance(0.5);
  if (script.ranks == 1 && random.chance(0.5)) {  // a single rank had no fault before
    script.fault = random.one_of(std::array{Fault::kill, Fault::stop, Fault::unplug, Fault::dry});
  }
  if (!script.hits_a_rank() || !(is_struck || script.ranks == 1)) return;
  if (script.fault == Fault::cut) script.partner = script.victim;
  script.victim = server;
}

}  // namespace

SimScript make_script(uint64_t seed) {
  RandomSource random(seed);
  SimScript script;
  script.ranks =
      static_cast<int>(random.one_of(std::array<int64_t, 10>{1, 2, 2, 3, 3, 4, 5, 6, 8, 20}));
  script.network.seed = seed;
  script.network.peer_timeout = 5 * kSecond;
  script.network.delay_max = random.one_of(std::array<Nanoseconds, 3>{5, 50, 1000}) * kMicrosecond;
  script.network.busy = random.chance(0.5) ? 0.2 : 0;
  script.network.rewrites = random.chance(0.5) ? 0.3 : 0;
  script.network.eager_bytes =
      static_cast<std::size_t>(random.one_of(std::array<int64_t, 4>{0, 0, 100, 2000}));
  script.network.pool_alone = random.chance(0.3);
  // With many ranks, a small pool would cut the tensors into too many segments.
  const bool is_small = random.chance(0.2) && script.ranks <= 8;
  script.pool_bytes = uint64_t{is_small ? 1u << 20 : 64u << 20};
  script.network.views = random.chance(0.6);
  script.network.node_ranks =
      static_cast<int>(random.one_of(std::array<int64_t, 5>{0, 0, 1, 2, 3}));
  script.network.foreign_views = random.chance(0.5);
  script.network.mapped = random.chance(0.5);
  script.algorithm = make_algorithm(random);
  script.canonical = never_canonical(script.algorithm).empty() && random.chance(0.3);
  script.segment_bytes =
      static_cast<uint64_t>(random.one_of(std::array<int64_t, 4>{64, 1000, 16 << 10, 4 << 20}));
  if (script.ranks > 8) script.segment_bytes = std::max<uint64_t>(script.segment_bytes, 32 << 10);
  script.slow_compute = random.chance(0.4);
  const int64_t phases = random.between(1, 4);
  for (int64_t i = 0; i < phases; ++i) {
    auto& phase = script.phases.emplace_back();
    for (int64_t left = random.between(1, 6); left > 0; --left) {
      phase.push_back(make_operation(random, script.ranks, phase.size()));
    }
  }
  make_sets(seed, script);
  RandomSource variety(seed, 8);
  for (auto& phase : script.phases) vary(variety, phase);
  make_repetitions(seed, random, script);
  make_set_changes(RandomSource(seed, 4), variety, script);
  make_joins(RandomSource(seed, 3), variety, script);
  make_end(script);
  limit_segments(script);
  make_fault(random, RandomSource(seed, 12), script);
  make_servers(RandomSource(seed, 5), script);
  if (RandomSource(seed, 7).chance(0.25)) script.network.control_delays = 10;
  RandomSource sharing(seed, 9);
  script.shares_results = sharing.chance(0.4);
  // Automatically chosen algorithms do not share small results.
  if (script.shares_results && sharing.chance(0.5)) script.algorithm = shareable_sum().name;
  RandomSource apart(seed, 10);
  if (!script.shares_results && apart.chance(0.15)) {
    const std::vector<std::string> names = algorithms_that_sum(true);
    const auto last = static_cast<int64_t>(names.size()) - 1;
    script.algorithm = names[static_cast<std::size_t>(apart.between(0, last))];
  }
  RandomSource gpus(seed, 13);
  if (!script.shares_results && gpus.chance(0.25)) {
    script.gpus = gpus.one_of(std::array{GpuUse::all, GpuUse::one_rank, GpuUse::some});
  }
  if (script.gpus != GpuUse::none && gpus.chance(0.7)) make_direct(seed, script);
  if (script.gpus != GpuUse::none && !script.direct.ways.any()) make_ipc(seed, script);
  script.records_ends = !script.shares_results &&
                        RandomSource(seed, 17).chance(script.gpus == GpuUse::none ? 0.15 : 0.6);
  if (script.records_ends && script.ipc.is_on) make_delays(seed, script);
  script.tries_ways = RandomSource(seed, 14).chance(0.4);
  script.looks_again = script.tries_ways && RandomSource(seed, 15).chance(0.5);
  RandomSource ends(seed, 11);
  if (script.members() > 1 && ends.chance(0.15)) {
    script.late_messages = static_cast<int>(ends.between(1, 4));
  }
  return script;
}

SimScript SimScript::next_world() const {
  SimScript next = *this;
  next.network.seed = ~network.seed;  // other timing
  next.fault = Fault::late;
  next.epoch = epoch + 1;
  return next;
}

int SimScript::rank_in(std::size_t set, int rank) const {
  if (set == 0) return rank;
  const auto at = std::find(sets[set - 1].begin(), sets[set - 1].end(), rank);
  return at == sets[set - 1].end() ? -1 : static_cast<int>(at - sets[set - 1].begin());
}

void SimScript::insert(std::size_t at, const std::vector<std::vector<SimOperation>>& more) {
  phases.insert(phases.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
  for (SimSetChange& change : changes) {
    if (change.phase >= at) change.phase += more.size();
  }
}

int SimScript::ranks_of(std::size_t set) const {
  return set == 0 ? ranks : static_cast<int>(sets[set - 1].size());
}

}  // namespace rdmacoll
