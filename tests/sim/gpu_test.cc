// Simulates ranks whose tensors are in memory of GPUs.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "base/text.h"
#include "collectives/algorithms.h"
#include "every_kind.h"
#include "sanitized.h"
#include "sim/random_source.h"
#include "sim/script.h"
#include "sim/simulator.h"

namespace rdmacoll {
namespace {

// Three times one operation of every kind. The network and the dtypes depend on the seed.
SimScript script_of(uint64_t seed, const std::string& algorithm, GpuUse gpus) {
  RandomSource random(seed, 20);
  SimScript script;
  script.gpus = gpus;
  script.algorithm = algorithm;
  script.ranks = static_cast<int>(random.one_of(std::array<int64_t, 5>{1, 2, 3, 5, 8}));
  script.segment_bytes = static_cast<uint64_t>(random.one_of(std::array<int64_t, 2>{4096, 64}));
  script.slow_compute = random.chance(0.5);
  script.plan_repeats = random.chance(0.5) ? 1 : 0;
  script.network.seed = seed;
  script.network.views = random.chance(0.7);
  script.network.node_ranks = random.chance(0.5) ? 2 : 0;
  script.network.foreign_views = random.chance(0.5);
  script.network.mapped = random.chance(0.5);
  script.network.pool_alone = random.chance(0.5);
  script.network.eager_bytes = random.chance(0.3) ? 200 : 0;
  script.network.busy = random.chance(0.3) ? 0.2 : 0;
  std::vector<SimOperation> phase = every_kind(script.ranks, 12, random.chance(0.5));
  for (SimOperation& operation : phase) {
    if (random.chance(0.3)) operation.dtype = Dtype::bfloat16;
    if (random.chance(0.3) && row_of(operation.kind).reduces) operation.op = ReduceOp::average;
  }
  if (random.chance(0.3)) {
    for (SimOperation& operation : phase) operation.name.clear();
  }
  script.phases.insert(script.phases.end(), 3, phase);
  return script;
}

std::string fault_of(const SimOutcome& outcome) {
  return cat(outcome.hang, outcome.wrong, outcome.unnamed, outcome.overslept);
}

std::string name_of(GpuUse gpus) {
  return gpus == GpuUse::all ? "all" : gpus == GpuUse::one_rank ? "one_rank" : "some";
}

class OnGpus : public testing::TestWithParam<GpuUse> {};

TEST_P(OnGpus, every_kind_is_right_with_every_algorithm) {
  uint64_t seed = 1000;
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.result != AlgorithmRow::Result::sum || row.by_servers) continue;
    for (unsigned i = 0; i < seeds(12); ++i, ++seed) {
      const SimScript script = script_of(seed, std::string(row.name), GetParam());
      const SimOutcome outcome = simulate(script);
      ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
    }
  }
}

// The last two ranks are servers, which have no tensors.
TEST_P(OnGpus, sums_by_servers_are_right) {
  for (uint64_t seed = 1; seed <= seeds(20); ++seed) {
    SimScript script = script_of(seed, "", GetParam());
    script.servers = 2;
    const SimOutcome outcome = simulate(script);
    ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
  }
}

// Ranks that have joined take part with zeros of host memory.
TEST_P(OnGpus, sums_are_right_after_some_ranks_have_joined) {
  for (uint64_t seed = 1; seed <= seeds(30); ++seed) {
    SimScript script = script_of(seed, "", GetParam());
    script.ranks = 4;
    script.phases.clear();
    for (int givers = 4; givers > 0; givers -= 2) {
      std::vector<SimOperation> phase;
      for (const char* name : {"a", "b", "c"}) {
        phase.push_back({.name = name, .shapes = {{30}, {7}}, .givers = givers});
      }
      phase.push_back({.kind = Kind::join});
      script.phases.push_back(phase);
    }
    const SimOutcome outcome = simulate(script);
    ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
  }
}

// Operations end when their work is enqueued. The program goes on, and a stream reads the results
// behind that work. Ranks leave while a GPU still works.
TEST_P(OnGpus, results_are_right_behind_recorded_ends) {
  uint64_t early_ends = 0, plans = 0;
  for (uint64_t seed = 1; seed <= seeds(60); ++seed) {
    SimScript script = script_of(seed, "", GetParam());
    script.records_ends = true;
    if (seed % 3 == 0) make_direct(seed, script);
    const SimOutcome outcome = simulate(script);
    ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
    early_ends += outcome.early_ends;
    plans += outcome.plans;
  }
  EXPECT_GT(early_ends, seeds(60));
  EXPECT_GT(plans, 0u);
}

// Results of operations that had ended stay right, and later operations name the rank.
TEST_P(OnGpus, a_rank_that_is_killed_behind_recorded_ends_is_named) {
  uint64_t early_ends = 0, failed = 0;
  for (uint64_t seed = 1; seed <= seeds(60); ++seed) {
    SimScript script = script_of(seed, "", GetParam());
    script.ranks = 3;
    script.phases.assign(3, every_kind(script.ranks, 12, false));
    script.records_ends = true;
    script.fault = Fault::kill;
    script.victim = static_cast<int>(seed % 3);
    script.fault_at = static_cast<Nanoseconds>(seed) * 6 * kMillisecond / seeds(60);
    const SimOutcome outcome = simulate(script);
    ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
    early_ends += outcome.early_ends;
    failed += outcome.failed;
  }
  EXPECT_GT(early_ends, seeds(60) / 2);
  EXPECT_GT(failed, seeds(60) / 2);
}

INSTANTIATE_TEST_SUITE_P(ranks, OnGpus,
                         testing::Values(GpuUse::all, GpuUse::one_rank, GpuUse::some),
                         [](const auto& info) { return name_of(info.param); });

// ---- NICs that access memory of GPUs ----

class DirectOnGpus : public testing::TestWithParam<GpuUse> {};

TEST_P(DirectOnGpus, every_kind_is_right_with_every_algorithm) {
  SimOutcome sum;
  uint64_t seed = 5000;
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.result != AlgorithmRow::Result::sum || row.by_servers) continue;
    for (unsigned i = 0; i < seeds(12); ++i, ++seed) {
      SimScript script = script_of(seed, std::string(row.name), GetParam());
      make_direct(seed, script);
      const SimOutcome outcome = simulate(script);
      ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
      sum.direct_sent += outcome.direct_sent;
      sum.direct_received += outcome.direct_received;
      sum.flushes += outcome.flushes;
      sum.evictions += outcome.evictions;
      sum.freed += outcome.freed;
      sum.refusals += outcome.refusals;
    }
  }
  EXPECT_GT(sum.direct_sent, seeds(1000));
  EXPECT_GT(sum.direct_received, seeds(1000));
  EXPECT_GT(sum.flushes, seeds(20));
  EXPECT_GT(sum.evictions, seeds(5));
  EXPECT_GT(sum.freed, seeds(20));
  EXPECT_GT(sum.refusals, seeds(20));
}

INSTANTIATE_TEST_SUITE_P(ranks, DirectOnGpus,
                         testing::Values(GpuUse::all, GpuUse::one_rank, GpuUse::some),
                         [](const auto& info) { return name_of(info.param); });

// A rank dies, leaves, is cut off, or has no memory, while its peers' NICs access its GPUs.
TEST(DirectOnGpusWithFaults, name_the_rank) {
  int struck = 0;
  for (uint64_t seed = 0, found = 0; found < seeds(150); ++seed) {
    const SimScript script = make_script(seed);
    if (!script.direct.ways.any() || script.fault == Fault::none) continue;
    ++found;
    const SimOutcome outcome = simulate(script);
    ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
    struck += outcome.failed > 0 && outcome.direct_received > 0 ? 1 : 0;
  }
  EXPECT_GT(struck, static_cast<int>(seeds(10)));
}

// ---- ranks that read memory of each other's GPUs ----

class SharedGpus : public testing::TestWithParam<GpuUse> {
 protected:
  // Runs `phases` phases of every kind with `count` seeds, and kills a rank within `limit`. `set`
  // changes the script of a seed.
  void kill_a_rank(uint64_t count, int ranks, std::size_t phases, Nanoseconds limit,
                   const std::function<void(uint64_t, SimScript&)>& set) {
    for (uint64_t seed = 1; seed <= count; ++seed) {
      SimScript script = script_of(seed, "", GetParam());
      make_ipc(seed, script);
      script.ranks = ranks;
      script.phases.assign(phases, every_kind(ranks, 12, false));
      script.fault = Fault::kill;
      script.victim = static_cast<int>(seed % static_cast<uint64_t>(ranks));
      script.fault_at = static_cast<Nanoseconds>(seed) * limit / static_cast<Nanoseconds>(count);
      set(seed, script);
      const SimOutcome outcome = simulate(script);
      ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
      on_gpus_ += outcome.on_gpus;
      failed_ += outcome.failed;
    }
  }

  uint64_t on_gpus_ = 0, failed_ = 0;
};

TEST_P(SharedGpus, every_kind_is_right_with_every_algorithm) {
  uint64_t seed = 9000, on_gpus = 0, in_place = 0;
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.result != AlgorithmRow::Result::sum || row.by_servers) continue;
    for (unsigned i = 0; i < seeds(24); ++i, ++seed) {
      SimScript script = script_of(seed, std::string(row.name), GetParam());
      make_ipc(seed, script);
      script.records_ends = seed % 2 == 0;
      const SimOutcome outcome = simulate(script);
      ASSERT_EQ(fault_of(outcome), "") << "seed " << seed << ": " << outcome.scenario;
      on_gpus += outcome.on_gpus;
      in_place += script.ipc.shares_arrays ? outcome.on_gpus : 0;
    }
  }
  EXPECT_GT(on_gpus, seeds(400));
  EXPECT_GT(in_place, seeds(100));
}

// The memory of a killed rank's GPUs is lost at once. No rank may make a result of it.
TEST_P(SharedGpus, a_rank_that_is_killed_is_named) {
  kill_a_rank(seeds(200), 3, 6, 12 * kMillisecond,
              [](uint64_t seed, SimScript& script) { script.records_ends = seed % 2 == 0; });
  EXPECT_GT(on_gpus_, seeds(200));
  EXPECT_GT(failed_, seeds(200) / 2);
}

// GPUs read for longer than the news of a failure takes, so ranks learn of the end of a peer while
// they still read its memory. Some ranks leave, or have said so.
TEST_P(SharedGpus, a_rank_that_is_killed_while_gpus_are_late_is_named) {
  kill_a_rank(seeds(400), 4, 3, 3 * kSecond, [](uint64_t, SimScript& script) {
    script.records_ends = true;
    script.gpu_delay_max = 300 * kMillisecond;
  });
  EXPECT_GT(on_gpus_, seeds(200));
  EXPECT_GT(failed_, seeds(100));
}

// A rank without a GPU opens none, so peers of it stage everything.
INSTANTIATE_TEST_SUITE_P(ranks, SharedGpus, testing::Values(GpuUse::all, GpuUse::some),
                         [](const auto& info) { return name_of(info.param); });

TEST(SimulatedScripts, put_tensors_of_some_seeds_into_memory_of_gpus) {
  int by_use[4] = {};
  int faults = 0, joins = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const SimScript script = make_script(seed);
    ++by_use[static_cast<int>(script.gpus)];
    if (script.gpus == GpuUse::none) continue;
    faults += script.fault != Fault::none ? 1 : 0;
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) joins += operation.kind == Kind::join ? 1 : 0;
    }
  }
  for (const int uses : by_use) EXPECT_GT(uses, 10);
  EXPECT_GT(faults, 10);
  EXPECT_GT(joins, 10);
}

}  // namespace
}  // namespace rdmacoll
