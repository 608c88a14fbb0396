#include "cuda/end_of_lanes.h"

namespace rdmacoll::cuda {

Status EndOfLanes::passed(bool& has_passed) const {
  const Driver& driver = events_.front()->driver();
  const RelaxedCapture relaxed(driver);
  has_passed = false;
  Status failed;  // the first error; other GPUs may still work
  for (const auto& event : events_) {
    const Result result = driver.call.cuEventQuery(event->handle());
    if (result == kNotReady) return {};
    const Status status = driver.check(result, "the end of an operation's work on a GPU");
    if (failed.ok()) failed = status;
  }
  has_passed = failed.ok();
  return failed;
}

Status EndOfLanes::hold(StreamHandle stream) const {
  for (const auto& event : events_) {
    const Driver& driver = event->driver();
    RC_RETURN_IF_ERROR(driver.check(driver.call.cuStreamWaitEvent(stream, event->handle(), 0),
                                    "cuStreamWaitEvent"));
  }
  return {};
}

}  // namespace rdmacoll::cuda
