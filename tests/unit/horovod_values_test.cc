// Horovod's variables as aliases of settings.
#include "settings/horovod_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/config_fixture.h"

namespace rdmacoll {
namespace {

using config_test::variables;
using ::testing::AllOf;
using ::testing::HasSubstr;

class HorovodValuesTest : public config_test::ConfigTest {};

TEST_F(HorovodValuesTest, values_of_horovod_become_values_of_the_settings) {
  struct Case {
    const char* variable;
    const char* text;
    const char* setting;
    const char* value;
  };
  const Case kCases[] = {
      {"HOROVOD_FUSION_THRESHOLD", "67108864", "RDMACOLL_BUCKET_BYTES", "67108864"},
      {"HOROVOD_FUSION_THRESHOLD", "0", "RDMACOLL_BUCKET_BYTES", "1"},
      {"HOROVOD_STALL_CHECK_TIME_SECONDS", "30", "RDMACOLL_STALL_WARNING_S", "30"},
      {"HOROVOD_STALL_CHECK_TIME_SECONDS", "0", "RDMACOLL_STALL_WARNING_S", "0.001"},
      {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60", "RDMACOLL_STALL_ERROR_S", "60"},
      {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0", "RDMACOLL_STALL_ERROR_S", "1e+09"},
      {"HOROVOD_STALL_CHECK_DISABLE", "1", "RDMACOLL_STALL_WARNING_S", "1e+09"},
      {"HOROVOD_STALL_CHECK_DISABLE", "True", "RDMACOLL_STALL_ERROR_S", "1e+09"},
      {"HOROVOD_HIERARCHICAL_ALLREDUCE", "1", "RDMACOLL_ALLREDUCE_ALGORITHM", "two_level"},
      {"HOROVOD_LOG_LEVEL", "TRACE", "RDMACOLL_LOG", "debug"},
      {"HOROVOD_LOG_LEVEL", "fatal", "RDMACOLL_LOG", "error"},
      {"HOROVOD_LOG_LEVEL", "Info", "RDMACOLL_LOG", "info"},
      {"HOROVOD_GLOO_IFACE", "eth0", "RDMACOLL_INTERFACE", "eth0"},
      {"HOROVOD_START_TIMEOUT", "90", "RDMACOLL_START_TIMEOUT_S", "90"},
  };
  for (const Case& one : kCases) {
    variables() = {{one.variable, one.text}};
    ASSERT_TRUE(read().ok()) << one.variable << "=" << one.text;
    EXPECT_EQ(value(one.setting).value, one.value) << one.variable << "=" << one.text;
    EXPECT_EQ(value(one.setting).source, "environment");
    EXPECT_EQ(value(one.setting).given, std::string(one.variable) + "=" + one.text);
  }
}

TEST_F(HorovodValuesTest, a_false_flag_leaves_its_settings_as_they_are) {
  for (const char* text : {"0", "false", "False"}) {
    variables() = {{"HOROVOD_STALL_CHECK_DISABLE", text}, {"HOROVOD_HIERARCHICAL_ALLREDUCE", text}};
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(config.stall_warning_s, Config().stall_warning_s);
    EXPECT_EQ(config.stall_error_s, Config().stall_error_s);
    EXPECT_TRUE(config.allreduce_algorithms.empty());
  }
}

TEST_F(HorovodValuesTest, our_own_name_beats_horovods) {
  variables() = {{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"RDMACOLL_STALL_ERROR_S", "7"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.stall_error_s, 7);
  EXPECT_EQ(value("RDMACOLL_STALL_ERROR_S").warning,
            "HOROVOD_STALL_CHECK_DISABLE says 1; RDMACOLL_STALL_ERROR_S=7 is obeyed");
  EXPECT_EQ(config.stall_warning_s, 1e9);
}

TEST_F(HorovodValuesTest, a_disabled_stall_check_beats_its_times) {
  variables() = {{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"HOROVOD_STALL_CHECK_TIME_SECONDS", "3"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.stall_warning_s, 1e9);
}

TEST_F(HorovodValuesTest, wrong_values_are_refused_with_the_values_of_the_variable) {
  expect_refused("HOROVOD_FUSION_THRESHOLD", "much");
  expect_refused("HOROVOD_LOG_LEVEL", "loud");
  for (const char* flag : {"HOROVOD_STALL_CHECK_DISABLE", "HOROVOD_HIERARCHICAL_ALLREDUCE"}) {
    expect_refused(flag, "2 rings");
    EXPECT_THAT(read().message(), AllOf(HasSubstr("it takes 0 or 1")));
  }
}

TEST_F(HorovodValuesTest, words_of_horovod_are_no_values_of_other_names) {
  expect_refused("RDMACOLL_LOG", "trace");
  expect_refused("RDMACOLL_BUCKET_BYTES", "0");
}

}  // namespace
}  // namespace rdmacoll
