// Heartbeats of one connection. A dead process closes its socket at once. Heartbeats find a host
// that vanished and a process that was stopped.
#pragma once

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/text.h"

namespace rdmacoll {

class Liveness {
 public:
  // A peer is silent after `timeout`. This side sends at least every fifth of that time.
  Liveness(Nanoseconds timeout, Nanoseconds now)
      : timeout_(timeout), heard_at_(now), spoke_at_(now), polled_at_(now) {}

  void heard(Nanoseconds now) { heard_at_ = now; }
  void spoke(Nanoseconds now) { spoke_at_ = now; }
  bool should_speak(Nanoseconds now) const { return now - spoke_at_ >= timeout_ / 5; }

  // Call at every poll, before reading messages. If this process was stopped or starved, the peer's
  // messages may wait unread in a buffer. The peer then gets a fresh timeout.
  void polled(Nanoseconds now) {
    if (now - polled_at_ > timeout_ / 2) heard_at_ = now;
    polled_at_ = now;
  }
  // Call after reading messages.
  bool is_silent(Nanoseconds now) const { return now - heard_at_ > timeout_; }
  std::string cause() const {
    return cat("silent for ", timeout_ / kMillisecond,
               " ms (stopped, its host or its link down; RDMACOLL_PEER_TIMEOUT_S sets the limit)");
  }
  Nanoseconds next_deadline() const {
    return std::min(spoke_at_ + timeout_ / 5, heard_at_ + timeout_ + kMillisecond);
  }

 private:
  Nanoseconds timeout_;
  Nanoseconds heard_at_;
  Nanoseconds spoke_at_;
  Nanoseconds polled_at_;
};

}  // namespace rdmacoll
