#include "cuda/lane.h"

#include <utility>

#include "base/text.h"

namespace rdmacoll::cuda {

Lane::~Lane() {
  if (stream_ == nullptr || gpus_.driver().is_forked_child()) return;
  const Driver& driver = gpus_.driver();
  const ScopedContext scope(gpus_, gpu_);
  if (!scope.status().ok()) return;
  driver.call.cuStreamSynchronize(stream_);
  ends_.clear();
  driver.call.cuStreamDestroy_v2(stream_);
}

Status Lane::open() {
  if (stream_ != nullptr) return {};
  const Driver& driver = gpus_.driver();
  return driver.check(driver.call.cuStreamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate");
}

Status Lane::end(uint16_t job, const char* what) {
  const Driver& driver = gpus_.driver();
  EventHandle taken = nullptr;
  Status status = events_->take(gpus_.context(gpu_), taken);
  std::shared_ptr<const SharedEvent> event;
  if (status.ok()) {
    event = std::make_shared<const SharedEvent>(events_, gpus_.context(gpu_), taken);
    status = driver.check(driver.call.cuEventRecord(taken, stream_), "cuEventRecord");
  }
  if (!status.ok()) {  // the job's copies may not go on behind its end
    driver.call.cuStreamSynchronize(stream_);
    return status;
  }
  ends_.push_back({std::move(event), job, what});
  return {};
}

bool Lane::take_ended(uint16_t& job, Status& status) {
  if (ends_.empty()) return false;
  const Driver& driver = gpus_.driver();
  const Result result = driver.call.cuEventQuery(ends_.front().event->handle());
  if (result == kNotReady) return false;
  const End end = std::move(ends_.front());
  if (result != kSuccess) {
    status = driver.error(result, cat(end.what, " on ", gpus_.facts(gpu_).text()));
  }
  ends_.pop_front();
  job = end.job;
  return true;
}

bool Lane::watch(const std::shared_ptr<Sleeper>& sleeper) {
  End& oldest = ends_.front();
  // If the driver refuses, the timer of the sleeper still wakes it.
  if (!std::exchange(oldest.is_watched, true)) {
    const Status status = wake_stream_.notify_after(gpus_, gpu_, oldest.event->handle(), sleeper);
    if (!status.ok()) sleeper->say_not_notified(status);
  }
  return gpus_.driver().call.cuEventQuery(oldest.event->handle()) == kNotReady;
}

}  // namespace rdmacoll::cuda
