// Whether this process did not run for so long that its peers have gone on without it: it was
// stopped, or starved. Who is lost right after that has not failed.
#pragma once

#include "base/clock.h"

namespace rdmacoll {

class Gap {
 public:
  // To be called at each turn of the loop. How long it did not run, for a second after that; else
  // 0. Peers hear of us five times in their `patience`, and the last time may be a fifth of it ago.
  Nanoseconds turn(Nanoseconds now, Nanoseconds patience) {
    if (turned_at_ != 0 && now - turned_at_ > patience - patience / 5) {
      gap_ = now - turned_at_;
      resumed_at_ = now;
    } else if (now - resumed_at_ > kResumed) {
      gap_ = 0;
    }
    turned_at_ = now;
    return gap_;
  }

 private:
  // By then the kernel has told of connections that were closed meanwhile.
  static constexpr Nanoseconds kResumed = kSecond;

  Nanoseconds turned_at_ = 0, resumed_at_ = 0;
  Nanoseconds gap_ = 0;
};

}  // namespace rdmacoll
