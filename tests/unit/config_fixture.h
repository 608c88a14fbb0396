// Settings that are read from a map instead of the environment.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "settings/settings.h"

namespace rdmacoll::config_test {

// Lookup is a plain function, so the variables of the running test lie here.
inline std::map<std::string, std::string>& variables() {
  static std::map<std::string, std::string> map;
  return map;
}

inline std::optional<std::string> lookup(std::string_view name) {
  const auto found = variables().find(std::string(name));
  if (found == variables().end()) return std::nullopt;
  return found->second;
}

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override { variables().clear(); }

  Status read(std::string_view arguments = "") {
    return read_config(arguments, &lookup, config, values);
  }
  const SettingValue& value(std::string_view name) const {
    for (const SettingValue& candidate : values) {
      if (candidate.setting->name == name) return candidate;
    }
    ADD_FAILURE() << "no setting " << name;
    return values.front();
  }
  void expect_refused(const std::string& name, const std::string& text) {
    variables() = {{name, text}};
    const Status status = read();
    EXPECT_EQ(status.code(), Code::invalid) << name << "=" << text;
    EXPECT_THAT(status.message(),
                ::testing::AllOf(::testing::HasSubstr(name), ::testing::HasSubstr(text)));
  }

  Config config;
  std::vector<SettingValue> values;
};

}  // namespace rdmacoll::config_test
