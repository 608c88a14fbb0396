// Detects that this process did not run for so long that its peers went on without it: it was
// stopped, or starved. A peer that is lost right after that has not failed.
#pragma once

#include "base/clock.h"

namespace rdmacoll {

class SuspensionDetector {
 public:
  // Call this at each turn of the loop. Returns how long the process did not run, for one second
  // after it resumed; otherwise 0. `timeout`: that of the peers. They hear from this process five
  // times within it, so the last time may be a fifth of it ago.
  Nanoseconds turn(Nanoseconds now, Nanoseconds timeout) {
    if (turned_at_ != 0 && now - turned_at_ > timeout - timeout / 5) {
      suspension_ = now - turned_at_;
      resumed_at_ = now;
    } else if (now - resumed_at_ > kResumed) {
      suspension_ = 0;
    }
    turned_at_ = now;
    return suspension_;
  }

 private:
  // The time in which the kernel reports, after a suspension, the connections that were closed
  // during it.
  static constexpr Nanoseconds kResumed = kSecond;

  Nanoseconds turned_at_ = 0, resumed_at_ = 0;
  Nanoseconds suspension_ = 0;
};

}  // namespace rdmacoll
