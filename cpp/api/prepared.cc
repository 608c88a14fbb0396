#include "api/prepared.h"

#include <utility>

#include "api/device_requests.h"
#include "api/return_values.h"

namespace rdmacoll {
namespace {

// It keeps its place in the order, as in api/refusals.h.
Request refusal_of(const Request& request, const Status& reason) {
  Request refusal;
  refusal.set = request.set;
  refusal.kind = request.kind;
  refusal.name = request.name;
  refusal.iteration = request.iteration;
  refusal.refusal = reason.message();
  return refusal;
}

}  // namespace

Prepared::Prepared(Session& session, OperationRef operation, uint64_t stream, Nanoseconds timeout,
                   char** error)
    : session_(session),
      operation_(std::move(operation)),
      pinned_(session.pin(operation_->request)),
      stream_(stream),
      timeout_(timeout),
      error_(error) {
  operation_->is_prepared = true;
}

Prepared::~Prepared() { session_.unpin(pinned_); }

int Prepared::run(const GilReleaseHooks& hooks) {
  if (is_forked_child()) return kRefused;
  GilRelease gil_release(hooks);
  Operation& operation = *operation_;
  Driver& driver = session_.driver();
  // After a timeout the caller continues the same run, which may have ended meanwhile.
  if (!is_running_) {
    operation.rearm();
    is_running_ = true;
    Status status;
    if (stream_ != 0) status = renew_order(session_, stream_, operation.request);
    const bool has_order = status.ok();
    if (has_order) status = driver.submit_and_wait(operation_, timeout_, &gil_release);
    if (!has_order || status.code() == Code::duplicate)
      session_.refuse(refusal_of(operation.request, status));
    if (!status.ok()) operation.complete(status);
  } else {
    driver.wait(operation, timeout_, &gil_release);
  }
  is_running_ = !operation.done();
  if (is_running_) return kTimeout;
  if (const Status status = follow_end(operation); !status.ok()) return report(status, error_);
  return std::exchange(operation.state.has_moved_results, false) ? kMoved : kDone;
}

}  // namespace rdmacoll
