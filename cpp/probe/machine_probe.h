// Measures the profile of a machine: short loops on one core of this process, and on others beside
// it. Reads no setting and writes no file.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "probe/machine_facts.h"
#include "probe/machine_profile.h"

namespace rdmacoll::probe {

struct ProbePlan {
  Nanoseconds limit;   // everything that takes long stops here
  Nanoseconds slice;   // the time of one measurement, without its preparation
  uint64_t bytes_max;  // memory that each thread may touch
  int cores_max;       // cores that are busy at once, at most
  bool thorough;       // measure numbers, too, that decide nothing
};
// At the first start on a machine. Memory is left out: to touch more of it than the caches hold
// takes most of 50 ms, and the rate that the rest of them gives depends on where the pages lie.
inline constexpr ProbePlan kProbeAtStart{50 * kMillisecond, 1 * kMillisecond, 0, 2, false};
// By `rdmacoll tune`.
inline constexpr ProbePlan kProbeByTune{20 * kSecond, 200 * kMillisecond, 2ULL << 30, 256, true};

// Blocks for plan.limit at most, and a few milliseconds of processor time. The caller's thread
// sleeps meanwhile, and its affinity stays. Values that could not be measured are 0: those of
// several cores if the process has one core or other programs keep it busy, those of memory if they
// need more memory or time than the plan grants, those of one-copy reads if the kernel refuses
// them.
MachineProfile measure_machine(const MachineFacts& facts, const ProbePlan& plan);

}  // namespace rdmacoll::probe
