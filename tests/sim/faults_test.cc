// Thousands of orders of events that the real thing shows once a year.
#include <gtest/gtest.h>

#include <set>

#include "engine/sim_script.h"
#include "engine/simulator.h"

namespace rdmacoll {
namespace {

TEST(SimulatedFaults, end_with_right_sums_or_the_right_error) {
  uint64_t plans = 0, plans_left = 0, caught_up = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimOutcome outcome = simulate(seed);
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.scenario << "\n"
                              << outcome.hang << outcome.wrong << outcome.unnamed;
    plans += outcome.plans;
    plans_left += outcome.plans_left;
    caught_up += outcome.caught_up;
  }
  // Ranks have begun plans, left them, and been at different places then.
  EXPECT_GT(plans, 100u);
  EXPECT_GT(plans_left, 50u);
  EXPECT_GT(caught_up, 20u);
}

TEST(SimulatedFaults, cover_every_fault_and_several_world_sizes) {
  std::set<Fault> faults;
  std::set<int> ranks;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    faults.insert(script.fault);
    ranks.insert(script.ranks);
  }
  EXPECT_EQ(faults.size(), 12u);
  EXPECT_GE(ranks.size(), 7u);
}

TEST(SimulatedFaults, cover_every_kind) {
  std::set<Kind> kinds;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    for (const auto& phase : make_script(seed).phases) {
      for (const SimOperation& operation : phase) kinds.insert(operation.kind);
    }
  }
  for (uint8_t number = 0; is_known(static_cast<Kind>(number)); ++number) {
    EXPECT_TRUE(kinds.contains(static_cast<Kind>(number))) << int{number};
  }
}

TEST(SimulatedFaults, replay_to_the_same_story) {
  for (uint64_t seed : {3u, 17u, 42u}) {
    EXPECT_EQ(make_script(seed).text(), make_script(seed).text());
  }
}

}  // namespace
}  // namespace rdmacoll
