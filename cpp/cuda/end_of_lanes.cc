#include "cuda/end_of_lanes.h"

namespace rdmacoll::cuda {

Status EndOfLanes::passed(bool& has_passed) const {
  const Driver& driver = events_.front()->driver();
  const RelaxedCapture relaxed(driver);
  has_passed = false;
  for (const auto& event : events_) {
    const Result result = driver.call.cuEventQuery(event->handle());
    if (result == kNotReady) return {};
    RC_RETURN_IF_ERROR(driver.check(result, "the end of an operation's work on a GPU"));
  }
  has_passed = true;
  return {};
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
