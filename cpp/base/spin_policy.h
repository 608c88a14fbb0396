// Decides how long to poll before sleeping: as long as polling has paid lately. It resembles the
// kernel's halt polling for virtual machines, but returns to the full spin budget at once.
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
