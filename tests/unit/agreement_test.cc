// Ranks that agree by messages in any order take the same decisions in the same order. Each of
// their operations ends once, and alike on all ranks. No transport and no data are needed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "agreeing_world.h"
#include "agreement_script.h"
#include "sanitized.h"

namespace rdmacoll {
namespace {

void run(uint64_t seed, Totals& totals) {
  const AgreementScript script = ScriptDraw(seed).draw();
  AgreeingWorld(script).run(totals);
  ASSERT_FALSE(testing::Test::HasFailure()) << script.text();
}

// RDMACOLL_TEST_AGREEMENT_STEPS asks for another number of events.
TEST(AgreementOfRanks, is_the_same_in_any_order_of_messages) {
  const char* const asked = std::getenv("RDMACOLL_TEST_AGREEMENT_STEPS");
  const uint64_t steps = asked != nullptr ? std::stoull(asked) : seeds(200'000);
  Totals totals;
  for (uint64_t seed = 0; totals.steps < steps; ++seed) {
    run(seed, totals);
    if (HasFailure()) return;
  }
  // Ranks have begun plans, left them, been at different places then, and had other rows.
  EXPECT_GT(totals.decisions, totals.steps / 200);
  EXPECT_GT(totals.plans, totals.steps / 1000);
  EXPECT_GT(totals.plans_left, totals.steps / 2000);
  EXPECT_GT(totals.caught_up, totals.steps / 2000);
  EXPECT_GT(totals.replayed, totals.steps / 200000);  // they come in bursts
}

// A rank that was behind when a plan ended runs an operation that has been judged. The root's
// answer to its readiness comes later, and must not meet the next operation of that name.
TEST(AgreementOfRanks, is_not_disturbed_by_a_late_answer) {
  Totals totals;
  run(2958, totals);
}

// A rank joins while an operation runs, and gives zeros for the next operation of this name. The
// verdict on the next operation must not end the one that runs.
TEST(AgreementOfRanks, gives_a_verdict_to_its_own_operation) {
  Totals totals;
  run(32522, totals);
}

// A rank waits for one sum of a planned batch before it submits the other one. The other ranks have
// started the batch by the plan, with a sum of the next step.
TEST(AgreementOfRanks, lets_a_rank_wait_within_a_planned_batch) {
  Totals totals;
  run(63517, totals);
}

}  // namespace
}  // namespace rdmacoll
