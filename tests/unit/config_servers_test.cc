// Settings of asynchronous parameter servers, together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "settings/settings.h"

namespace rdmacoll {
namespace {

using ::testing::HasSubstr;

Status read_lines(std::string_view lines, Config& config) {
  std::vector<SettingValue> values;
  const auto none = [](std::string_view) -> std::optional<std::string> { return std::nullopt; };
  return read_config(lines, none, config, values);
}

TEST(ConfigServersTest, asynchronous_servers_need_servers) {
  Config config;
  EXPECT_THAT(read_lines("RDMACOLL_PS_SYNC=0", config).message(),
              HasSubstr("RDMACOLL_PS_SYNC=false needs RDMACOLL_MODE=ps"));
  ASSERT_TRUE(read_lines("RDMACOLL_PS_SYNC=0\nRDMACOLL_MODE=ps", config).ok());
  EXPECT_FALSE(config.ps_sync);
  EXPECT_EQ(config.ps_staleness, std::nullopt);
}

TEST(ConfigServersTest, staleness_needs_asynchronous_servers) {
  Config config;
  ASSERT_TRUE(
      read_lines("RDMACOLL_PS_SYNC=0\nRDMACOLL_MODE=ps\nRDMACOLL_PS_STALENESS=0", config).ok());
  EXPECT_EQ(config.ps_staleness, 0U);
  EXPECT_THAT(read_lines("RDMACOLL_MODE=ps\nRDMACOLL_PS_STALENESS=0", config).message(),
              HasSubstr("RDMACOLL_PS_STALENESS=0 needs RDMACOLL_PS_SYNC=false"));
}

}  // namespace
}  // namespace rdmacoll
