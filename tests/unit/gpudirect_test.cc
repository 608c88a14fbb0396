// RDMACOLL_GPUDIRECT: its values, and the names of the driver's libraries.
#include "base/gpudirect.h"

#include "unit/config_fixture.h"

namespace rdmacoll {
namespace {

using config_test::variables;

constexpr GpuDirectMode kAuto = GpuDirectMode::automatic;
constexpr GpuDirectMode kOff = GpuDirectMode::off;
constexpr GpuDirectMode kForce = GpuDirectMode::force;

class GpuDirectTest : public config_test::ConfigTest {};

TEST_F(GpuDirectTest, has_one_mode_or_one_for_each_direction) {
  const std::map<std::string, GpuDirectSetting> kValues = {
      {"auto", {kAuto, kAuto}},
      {"OFF", {kOff, kOff}},
      {" force ", {kForce, kForce}},
      {"send:off", {kOff, kAuto}},
      {"receive:force", {kAuto, kForce}},
      {"send:off,receive:force", {kOff, kForce}},
      {"receive: off , send: auto", {kAuto, kOff}},
      {"send:off,receive:off", {kOff, kOff}},
  };
  for (const auto& [text, expected] : kValues) {
    EXPECT_EQ(gpudirect_from(text), expected) << text;
    EXPECT_EQ(gpudirect_from(expected.text()), expected) << expected.text();
  }
}

TEST_F(GpuDirectTest, refuses_other_text) {
  for (const std::string text : {"", "on", "true", "1", "send", "send:", "send:on", "off,force",
                                 "both:off", ":off", "send:off,", ",send:off",
                                 "send:off,send:force", "send:off;receive:off", "send:off:force"}) {
    EXPECT_EQ(gpudirect_from(text), std::nullopt) << text;
  }
}

TEST_F(GpuDirectTest, is_read_as_a_setting) {
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.gpudirect, GpuDirectSetting{});
  EXPECT_EQ(config.nvml_library, "libnvidia-ml.so.1");
  EXPECT_EQ(value("RDMACOLL_GPUDIRECT").source, "automatic");

  variables() = {{"RDMACOLL_GPUDIRECT", "Send:OFF"}, {"RDMACOLL_NVML_LIBRARY", "/x/libnvml.so"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.gpudirect, (GpuDirectSetting{kOff, kAuto}));
  EXPECT_EQ(config.nvml_library, "/x/libnvml.so");
  EXPECT_EQ(value("RDMACOLL_GPUDIRECT").value, "send:off,receive:auto");

  variables() = {{"RDMACOLL_GPUDIRECT", "receive:force"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.gpudirect, (GpuDirectSetting{kAuto, GpuDirectMode::force}));
  EXPECT_EQ(value("RDMACOLL_GPUDIRECT").warning, "");

  expect_refused("RDMACOLL_GPUDIRECT", "sometimes");
  EXPECT_EQ(read().message(),
            "RDMACOLL_GPUDIRECT=sometimes is not allowed: it takes auto, off or force, or one of "
            "them for each direction (send:off,receive:force).");
}

}  // namespace
}  // namespace rdmacoll
