// Simulates ranks that are suspended in the middle of a job, while a peer fails and goes on. The
// peer waits for an answer for a limited time only, and then changes the memory that they read.
#include <gtest/gtest.h>

#include <array>
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

// Whether jobs take time.
class SuspendedRanks : public testing::TestWithParam<bool> {
 protected:
  // One kind of operation, so that some ranks have no connection, and hear of failures late.
  static SimScript script_of(uint64_t seed) {
    RandomSource random(seed, 21);
    SimScript script;
    script.ranks = static_cast<int>(random.one_of(std::array<int64_t, 4>{3, 5, 6, 8}));
    script.segment_bytes = static_cast<uint64_t>(random.one_of(std::array<int64_t, 2>{4096, 64}));
    script.slow_compute = GetParam();
    script.network.seed = seed;
    script.network.node_ranks = random.chance(0.5) ? 4 : 0;
    script.network.foreign_views = random.chance(0.8);
    script.network.mapped = random.chance(0.5);
    script.network.delay_max = 50 * kMicrosecond;
    const std::vector<SimOperation> kinds = every_kind(script.ranks, 150, false);
    script.phases.assign(3, {kinds[seed % kinds.size()]});
    script.sleeper = static_cast<int>(random.between(0, script.ranks - 1));
    script.sleep_at = random.between(0, 600) * kMicrosecond;
    script.sleep = 400 * kMillisecond;
    return script;
  }

  void simulate_failure(uint64_t seed, const SimScript& script) {
    const SimOutcome outcome = simulate(script);
    ASSERT_EQ(cat(outcome.hang, outcome.wrong, outcome.unnamed, outcome.overslept), "")
        << "seed " << seed << ": " << outcome.scenario;
    failed_ += outcome.failed;
  }

  uint64_t failed_ = 0;
};

// Rank 0 reads the weights of rank 2 while rank 3 is killed, and rank 1 reads those of rank 0. Rank
// 1 has no other connection, so it hears of the failure from rank 0 alone.
TEST_P(SuspendedRanks, send_no_weights_that_they_have_read_too_late) {
  for (uint64_t seed = 0; seed < seeds(300); ++seed) {
    SimScript script = script_of(seed);
    script.ranks = 6;
    script.network.node_ranks = 4;
    script.network.foreign_views = true;
    script.segment_bytes = 4096;
    const SimOperation weights{
        .kind = Kind::broadcast, .root = 2, .name = "weights", .shapes = {{1000}}};
    script.phases.assign(3, {weights});
    script.sleeper = 0;
    script.victim = 3;
    script.fault = Fault::kill;
    script.fault_at = script.sleep_at + 100 * kMicrosecond;
    ASSERT_NO_FATAL_FAILURE(simulate_failure(seed, script));
  }
  EXPECT_GT(failed_, seeds(300));
}

// The ranks of a cut connection live on, and use their memory again.
TEST_P(SuspendedRanks, send_nothing_that_they_have_read_too_late) {
  uint64_t seed = 0;
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.result != AlgorithmRow::Result::sum || row.by_servers) continue;
    for (unsigned i = 0; i < seeds(150); ++i, ++seed) {
      SimScript script = script_of(seed);
      script.algorithm = row.name;
      script.victim = (script.sleeper + 1 + static_cast<int>(seed % 2)) % script.ranks;
      script.fault = seed % 3 == 0 ? Fault::kill : Fault::cut;
      script.partner = (script.victim + 1) % script.ranks;
      if (script.partner == script.sleeper) script.partner = (script.partner + 1) % script.ranks;
      script.fault_at = script.sleep_at + 100 * kMicrosecond;
      ASSERT_NO_FATAL_FAILURE(simulate_failure(seed, script));
    }
  }
  EXPECT_GT(failed_, seed);
}

// The peers give the rank up, and go on without it.
TEST_P(SuspendedRanks, that_peers_have_given_up_send_nothing) {
  for (uint64_t seed = 0; seed < seeds(500); ++seed) {
    SimScript script = script_of(seed);
    script.victim = script.sleeper;
    script.fault = Fault::stop;
    script.fault_at = kNever / 2;  // within the job alone
    script.sleep = 3 * script.network.peer_timeout;
    ASSERT_NO_FATAL_FAILURE(simulate_failure(seed, script));
  }
  EXPECT_GT(failed_, seeds(500));
}

INSTANTIATE_TEST_SUITE_P(jobs, SuspendedRanks, testing::Bool(), [](const auto& info) {
  return info.param ? "that_take_time" : "at_once";
});

}  // namespace
}  // namespace rdmacoll
