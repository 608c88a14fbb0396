// The order between a caller's stream of GPU work and an operation of the engine.
#pragma once

#include "base/status.h"

namespace rdmacoll {

// Made when an operation is submitted. Only the holder of the baton asks it.
class StreamOrder {
 public:
  virtual ~StreamOrder() = default;
  // Never blocks. Sets `is_reached` once the work is done that the stream held at the submission.
  // Only then may the engine read or write the operation's memory. An error ends the operation.
  virtual Status reached(bool& is_reached) = 0;
  // Asks, before the engine sleeps, for a wake-up through the waker of its Compute. Returns false
  // if no wake-up will come, so that the engine must ask again soon.
  virtual bool arm() { return false; }
};

}  // namespace rdmacoll
