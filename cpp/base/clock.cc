#include "base/clock.h"

#include <time.h>

namespace rdmacoll {

Nanoseconds SteadyClock::now() const {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanoseconds>(time.tv_sec) * kSecond + time.tv_nsec;
}

}  // namespace rdmacoll
