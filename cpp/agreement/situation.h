// The state of the job, as far as agreement depends on it. The engine maintains it.
#pragma once

#include <set>

#include "base/clock.h"
#include "base/rank.h"
#include "base/status.h"

namespace rdmacoll {

// How often late and stalled operations, and plans without progress, are checked.
inline constexpr Nanoseconds kCheckInterval = kMillisecond;

struct Situation {
  Nanoseconds turned_at = 0;  // when the current turn began
  Status failure;             // the failure that ended the world, or ok()
  Status departed;            // the first rank that left; no more collectives run
  bool leaving = false;       // this rank is leaving
  std::set<JobRank> lost;     // ranks whose connection is closed

  bool goes_on() const { return failure.ok(); }
};

}  // namespace rdmacoll
