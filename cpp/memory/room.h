// How much memory this process may have, and the largest buffer pool that fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace rdmacoll {

struct MemoryRoom {
  std::optional<uint64_t> address_limit;  // RLIMIT_AS, in bytes
  uint64_t address_used = 0;              // of it
  std::optional<uint64_t> group_limit;    // memory.max of the cgroup, or of one above it
  std::string group_file;                 // that says so
};

// Of this process. `root`: where /proc and /sys are, for tests.
MemoryRoom memory_room(const std::string& root = "");

struct PoolWish {
  uint64_t bytes = 0;
  bool is_given = false;  // the user set RDMACOLL_BUF_SIZE
  int ranks = 1;          // of this node, at most: each maps the pools of all
};

// The size of the pool. A default that does not fit becomes smaller, and `note` says why. A size
// that was asked for and does not fit is refused with the limit, with what is needed and the cure.
Status fit_pool(const PoolWish& wish, const MemoryRoom& room, uint64_t& bytes, std::string& note);

// Whether the pools of `peers` other ranks of this node can be mapped beside this rank's own, which
// is mapped already.
Status check_mappings(uint64_t pool_bytes, int peers, const MemoryRoom& room);

}  // namespace rdmacoll
