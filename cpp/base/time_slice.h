// The scheduler's time slice of a thread. From Linux 6.12 on, a woken thread takes the core at once
// from a thread with a longer slice. Otherwise it waits until that slice ends, which takes some
// milliseconds. Threads keep their share of the processor.
#pragma once

#include "base/kernel_calls.h"

namespace rdmacoll {

class ShortTimeSlice {
 public:
  ShortTimeSlice() = default;
  ShortTimeSlice(const ShortTimeSlice&) = delete;
  ShortTimeSlice& operator=(const ShortTimeSlice&) = delete;
  ~ShortTimeSlice();  // the thread has its own slice again

  // Gives the calling thread the shortest slice. Does nothing for real-time threads, and where the
  // kernel refuses.
  void begin();

 private:
  bool is_tried_ = false;
  bool has_begun_ = false;
  SchedulerAttributes own_ = {};
};

}  // namespace rdmacoll
