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
      : timeout_(timeout), received_at_(now), sent_at_(now), polled_at_(now) {}

  void received(Nanoseconds now) { received_at_ = now; }
  void sent(Nanoseconds now) { sent_at_ = now; }
  bool is_heartbeat_due(Nanoseconds now) const { return now - sent_at_ >= timeout_ / 5; }

  // Call at every poll, before reading messages. If this process was stopped or starved, the peer's
  // messages may wait unread in a buffer. The peer then gets a fresh timeout.
  void polled(Nanoseconds now) {
    if (now - polled_at_ > timeout_ / 2) received_at_ = now;
    polled_at_ = now;
  }
  // Call after reading messages.
  bool is_silent(Nanoseconds now) const { return now - received_at_ > timeout_; }
  std::string cause() const {
    return cat("silent for ", timeout_ / kMillisecond,
               " ms (stopped, its host or its link down; RDMACOLL_PEER_TIMEOUT_S sets the limit)");
  }
  Nanoseconds next_deadline() const {
    return std::min(sent_at_ + timeout_ / 5, received_at_ + timeout_ + kMillisecond);
  }

 private:
  Nanoseconds timeout_;
  Nanoseconds received_at_;
  Nanoseconds sent_at_;
  Nanoseconds polled_at_;
};

}  // namespace rdmacoll
