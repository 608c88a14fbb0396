#include "settings/horovod_values.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace rdmacoll {
namespace {

struct ValueName {
  std::string_view variable;
  std::string_view theirs;
  std::string_view ours;  // "": the setting stays as it is
};

constexpr std::string_view kDisable = "HOROVOD_STALL_CHECK_DISABLE";
constexpr std::string_view kHierarchical = "HOROVOD_HIERARCHICAL_ALLREDUCE";
constexpr std::string_view kNever = "1e9";  // seconds

constexpr std::array kWords{
    ValueName{"HOROVOD_FUSION_THRESHOLD", "0", "1"},  // no tensor shares a buffer with another one
    ValueName{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0", "0.001"},
    ValueName{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0", kNever},
    ValueName{"HOROVOD_LOG_LEVEL", "trace", "debug"},
    ValueName{"HOROVOD_LOG_LEVEL", "fatal", "error"},
    ValueName{kDisable, "1", kNever},
    ValueName{kDisable, "true", kNever},
    ValueName{kDisable, "0", ""},
    ValueName{kDisable, "false", ""},
    ValueName{kHierarchical, "1", "hierarchical"},
    ValueName{kHierarchical, "true", "hierarchical"},
    ValueName{kHierarchical, "0", ""},
    ValueName{kHierarchical, "false", ""},
};

}  // namespace

std::optional<std::string> value_from_horovod(std::string_view variable, std::string_view text) {
  const std::string word = lower(text);
  const auto found = std::find_if(kWords.begin(), kWords.end(), [&](const ValueName& one) {
    return one.variable == variable && one.theirs == word;
  });
  if (found == kWords.end()) return std::string(text);
  if (found->ours.empty()) return std::nullopt;
  return std::string(found->ours);
}

std::string_view allowed_by_horovod(std::string_view variable) {
  return variable == kDisable || variable == kHierarchical ? "0 or 1" : "";
}

}  // namespace rdmacoll
