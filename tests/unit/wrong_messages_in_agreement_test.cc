// No message of a peer crashes the agreement of a rank, keeps it busy for ever, or takes its
// memory. Random worlds that only agree hear some messages with one wrong field.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "agreeing_world.h"
#include "agreement_script.h"
#include "base/text.h"
#include "in_child.h"
#include "sanitized.h"

namespace rdmacoll {
namespace {

// Ranks that have refused all wrong messages must agree as if there had been none.
void run_tampered(uint64_t seed, Told& told) {
  const AgreementScript script = ScriptDraw(seed).draw();
  Tamper tamper(
      seed, [&](const std::string& change) { keep(cat(change, ", ", script.text()), told.about); });
  testing::TestPartResultArray failures;
  Totals totals;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    AgreeingWorld(script, &tamper).run(totals);
  }
  told.changed += tamper.changed();
  told.refused += tamper.refused();
  if (!tamper.is_tainted() && failures.size() > 0) {
    keep(cat(told.about, ": ", failures.GetTestPartResult(0).message()), told.complaint);
  }
}

// RDMACOLL_TEST_WRONG_MESSAGES asks for another number of them.
TEST(AgreementOfRanks, bears_messages_with_a_wrong_field) {
  const char* const asked = std::getenv("RDMACOLL_TEST_WRONG_MESSAGES");
  const uint64_t wanted = asked != nullptr ? std::stoull(asked) : seeds(40'000);
  Children children;
  Told& told = children.told();
  const std::vector<std::string> found =
      children.deaths([&] { return told.changed < wanted && told.complaint[0] == '\0'; },
                      [&](uint64_t seed) { run_tampered(seed, told); });
  EXPECT_TRUE(found.empty()) << join(found, "\n");
  EXPECT_STREQ(told.complaint, "");
  EXPECT_GT(told.refused, told.changed * 4 / 10) << "of " << told.changed;
}

}  // namespace
}  // namespace rdmacoll
