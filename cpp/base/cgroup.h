// Limits of the control group (container, service, job step) that this process is in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rdmacoll {

struct GroupLimit {
  uint64_t value = 0;
  std::string file;  // that says so
};

// The least limit of the process's group and of those above it. `kind` is "memory" or "pids";
// `file` is the file of version 2 of control groups, `old_file` that of version 1. `root`: where
// /proc and /sys are, for tests.
std::optional<GroupLimit> group_limit(const std::string& kind, const std::string& file,
                                      const std::string& old_file, const std::string& root = "");

}  // namespace rdmacoll
