#include "compute/inline.h"

namespace rdmacoll {

Status InlineCompute::submit(const ComputeJob& job) {
  if (count_ == kDoneMax) return Status::busy();
  std::size_t bytes = 0;
  Status status = measure(job, bytes);
  if (status.ok()) status = perform_at_once(job, bytes);
  done_[count_++] = {job.cookie, std::move(status)};
  return {};
}

Status InlineCompute::perform_at_once(const ComputeJob& job, std::size_t bytes) {
  count(job, bytes);
  return perform(job, 0, bytes, workspace_);
}

bool InlineCompute::poll(ComputeSink& sink) {
  if (count_ == 0) return false;
  // The sink may submit again: the next poll reports those jobs.
  const std::size_t ready = count_;
  for (std::size_t i = 0; i < ready; ++i) {
    const Done done = std::exchange(done_[i], {});
    sink.computed(done.cookie, done.status);
  }
  std::move(done_.begin() + static_cast<std::ptrdiff_t>(ready),
            done_.begin() + static_cast<std::ptrdiff_t>(count_), done_.begin());
  count_ -= ready;
  return true;
}

}  // namespace rdmacoll
