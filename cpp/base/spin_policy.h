// Decides how long to poll before sleeping: as long as polling has paid lately. It resembles the
// kernel's halt polling for virtual machines, but returns to the full spin budget at once.
//
// Polling helps all small operations, since a wake-up takes longer than they do. Shorter polling
// saves processor time where ranks wait for slow links or late peers, and changes no other time.
// YieldCost helps where other processes want the cores.
// docs/measurements/2026-11-28-what-mechanisms-are-worth.md has the figures, and shows how to see
// them (RDMACOLL_SPIN_US=0).
#pragma once

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace rdmacoll {

class SpinPolicy {
 public:
  explicit SpinPolicy(Nanoseconds most) : most_(most), spin_(most) {}

  Nanoseconds spin() const { return spin_; }
  // If slightly longer polling would have caught the event, the full spin budget is restored.
  // Otherwise the budget is halved.
  void slept(Nanoseconds waited) {
    spin_ = waited <= most_ + kWakeUp ? most_ : std::max(std::min(kLeast, most_), spin_ / 2);
  }

 private:
  static constexpr Nanoseconds kLeast = 5 * kMicrosecond;
  static constexpr Nanoseconds kWakeUp = 100 * kMicrosecond;  // is part of `waited`

  Nanoseconds most_;
  Nanoseconds spin_;
};

// Learns whether a yield loses the core to other threads. A yield returns at once if no other
// thread wants the core, and after that thread's time slice if one does. A thread that sleeps with
// a short slice (time_slice.h) is woken earlier.
class YieldCost {
 public:
  void yielded(Nanoseconds began, Nanoseconds ended) {
    const bool has_lost = ended - began > kSlice;
    memory_ = has_lost ? std::min(2 * memory_, kMemoryMost) : kMemoryLeast;
    if (has_lost) high_until_ = ended + memory_;
  }
  bool is_high(Nanoseconds now) const { return now < high_until_; }

 private:
  static constexpr Nanoseconds kSlice = 200 * kMicrosecond;
  // The next yield tries again after this time, which doubles while yields lose the core.
  static constexpr Nanoseconds kMemoryLeast = 10 * kMillisecond;
  static constexpr Nanoseconds kMemoryMost = kSecond;

  Nanoseconds memory_ = kMemoryLeast;
  Nanoseconds high_until_ = 0;
};

// A loop that polls, and sleeps after polling in vain for its spin budget. Sleeps and wake-ups
// without progress belong to one wait, until something moves.
class Wait {
 public:
  Wait(SpinPolicy& policy, Nanoseconds now) : policy_(policy), moved_at_(now) {}

  void moved(Nanoseconds now) {
    if (std::exchange(has_slept_, false)) policy_.slept(now - moved_at_);
    moved_at_ = now;
  }
  bool should_sleep(Nanoseconds now) const { return now - moved_at_ > policy_.spin(); }
  void slept() { has_slept_ = true; }

 private:
  SpinPolicy& policy_;
  Nanoseconds moved_at_;
  bool has_slept_ = false;  // since moved_at_
};

}  // namespace rdmacoll
