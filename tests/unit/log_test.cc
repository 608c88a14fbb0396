#include "base/log.h"

#include <gtest/gtest.h>

namespace rdmacoll {
namespace {

template <typename Act>
std::string written_by(Act act) {
  ::testing::internal::CaptureStderr();
  act();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, says_who_and_how_grave_in_one_line) {
  const Log log(LogLevel::info, 3);
  EXPECT_EQ(written_by([&] { log.warning("low on memory"); }),
            "[rdmacoll rank 3] warning: low on memory\n");
  EXPECT_EQ(written_by([&] { log.info("a\nb"); }), "[rdmacoll rank 3] info: a b\n");
  EXPECT_EQ(written_by([] { Log().error("early"); }), "[rdmacoll] error: early\n");
}

TEST(Log, keeps_quiet_below_its_level) {
  const Log log(LogLevel::warning, 0);
  EXPECT_EQ(written_by([&] { log.info("detail"); }), "");
  EXPECT_EQ(written_by([&] { log.debug("detail"); }), "");
  EXPECT_TRUE(log.enabled(LogLevel::error));
  EXPECT_FALSE(log.enabled(LogLevel::info));
}

TEST(Log, says_nothing_when_it_is_silent) {
  const Log log = Log::silent(0);
  EXPECT_EQ(written_by([&] { log.error("planned failure"); }), "");
}

}  // namespace
}  // namespace rdmacoll
