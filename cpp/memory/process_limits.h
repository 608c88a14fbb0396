// Finds the memory limits of this process, and the largest buffer pool that fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace rdmacoll {

struct ProcessLimits {
  std::optional<uint64_t> address_limit;  // RLIMIT_AS, in bytes
  uint64_t address_used = 0;              // bytes of address_limit in use
  std::optional<uint64_t> group_limit;    // memory.max of the cgroup, or of a group above it
  std::string group_file;                 // the file that sets group_limit
};

// Reads the limits of this process. `root`: the folder of /proc and /sys, for tests.
ProcessLimits process_limits(const std::string& root = "");

struct PoolRequest {
  uint64_t bytes = 0;
  bool is_given = false;  // the user set RDMACOLL_BUF_SIZE
  int ranks = 1;          // at most, on this node: each rank maps the pools of all
};

// Chooses the size of the pool. A default that does not fit becomes smaller, and `note` says why. A
// size that the user set and that does not fit is refused. The error names the limit, the needed
// size and the cure.
Status fit_pool(const PoolRequest& request, const ProcessLimits& limits, uint64_t& bytes,
                std::string& note);

// Checks that the pools of `peers` other ranks of this node can be mapped. This rank's own pool is
// already mapped.
Status check_mappings(uint64_t pool_bytes, int peers, const ProcessLimits& limits);

}  // namespace rdmacoll
