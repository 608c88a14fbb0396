// The order between a caller's stream of GPU work and an operation of the engine.
#pragma once

#include "base/status.h"

namespace rdmacoll {

// The end of an operation's work on GPUs. All of the work is enqueued, and some may not be done.
// Any thread may call it.
class GpuEnd {
 public:
  virtual ~GpuEnd() = default;
  // Never blocks. `has_passed`: the work is done, and the memory is free. An error of a GPU is
  // returned, after which no work is done any more.
  virtual Status passed(bool& has_passed) const = 0;
};

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
  // Makes the caller's stream wait for the end, without blocking. Called by the thread that waits
  // for the operation. On an error the stream does not wait.
  virtual Status follow(const GpuEnd&) { return Status::busy(); }
};

}  // namespace rdmacoll
