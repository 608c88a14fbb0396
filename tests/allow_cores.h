// The cores that a thread of a test may use.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <vector>

namespace rdmacoll {

inline void allow_cores(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

}  // namespace rdmacoll
