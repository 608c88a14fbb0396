// How long to poll before sleeping: as long as that has paid lately. The policy is that of the
// kernel's halt polling for virtual machines.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace rdmacoll {

class Patience {
 public:
  explicit Patience(Nanoseconds most) : most_(most), spin_(most) {}

  Nanoseconds spin() const { return spin_; }
  // What has come soon would have come to whoever had polled a little longer; what takes longer is
  // waited for asleep, and sooner so each time.
  void slept(Nanoseconds waited) {
    spin_ = waited <= most_ ? most_ : std::max(std::min(kLeast, most_), spin_ / 2);
  }

 private:
  static constexpr Nanoseconds kLeast = 5 * kMicrosecond;

  Nanoseconds most_;
  Nanoseconds spin_;
};

}  // namespace rdmacoll
