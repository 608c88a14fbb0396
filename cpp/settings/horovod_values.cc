#include "settings/horovod_values.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace rdmacoll {
namespace {

struct Word {
  std::string_view variable;
  std::string_view theirs;
  std::string_view ours;  // "": the setting stays as it is
};

constexpr std::string_view kDisable = "HOROVOD_STALL_CHECK_DISABLE";
constexpr std::string_view kHierarchical = "HOROVOD_HIERARCHICAL_ALLREDUCE";
constexpr std::string_view kNever = "1e9";  // seconds

constexpr std::array kWords{
    Word{"HOROVOD_FUSION_THRESHOLD", "0", "1"},  // no tensor shares a buffer with another one
    Word{"HOROVOD_STALL_CHECK_TIME_SECONDS", "0", "0.001"},
    Word{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0", kNever},
    Word{"HOROVOD_LOG_LEVEL", "trace", "debug"},
    Word{"HOROVOD_LOG_LEVEL", "fatal", "error"},
    Word{kDisable, "1", kNever},
    Word{kDisable, "true", kNever},
    Word{kDisable, "0", ""},
    Word{kDisable, "false", ""},
    Word{kHierarchical, "1", "hierarchical"},
    Word{kHierarchical, "true", "hierarchical"},
    Word{kHierarchical, "0", ""},
    Word{kHierarchical, "false", ""},
};

}  // namespace

std::optional<std::string> value_from_horovod(std::string_view variable, std::string_view text) {
  const std::string word = lower(text);
  const auto found = std::find_if(kWords.begin(), kWords.end(), [&](const Word& one) {
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
