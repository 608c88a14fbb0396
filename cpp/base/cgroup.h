// Limits of the control group (container, service, job step) that this process is in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rdmacoll {

struct GroupLimit {
  uint64_t value = 0;
  std::string file;  // the file that sets the limit
};

// Returns the least limit of the process's group and of all groups above it. `kind`: "memory" or
// "pids". `file`: the name in version 2 of control groups; `old_file`: in version 1. `root`: the
// folder of /proc and /sys, for tests.
std::optional<GroupLimit> group_limit(const std::string& kind, const std::string& file,
                                      const std::string& old_file, const std::string& root = "");

// Returns the memory that this process may use: that of the machine, or the least limit of its
// groups if that is less. 0: unknown.
uint64_t memory_limit_bytes(const std::string& root = "");

// Returns the time of how many cores the process's group, and all groups above it, may use. None:
// there is no quota.
std::optional<double> group_cores(const std::string& root = "");

}  // namespace rdmacoll
