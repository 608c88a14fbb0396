#include "execution/follow_end.h"

#include <chrono>
#include <thread>

namespace rdmacoll {
namespace {

// How often a thread looks for the end of work on a GPU, when it waits for it itself.
constexpr std::chrono::microseconds kLookInterval(20);

// Waits for work that no stream of the caller waits for. It ends soon, since it depends on nothing
// but the GPUs.
Status wait_for(const GpuEnd& end) {
  for (bool has_passed = false;;) {
    RC_RETURN_IF_ERROR(end.passed(has_passed));
    if (has_passed) return {};
    std::this_thread::sleep_for(kLookInterval);
  }
}

}  // namespace

Status follow_end(Operation& operation) {
  const GpuEnd* const end = operation.gpu_end.get();
  if (end == nullptr) return operation.status();
  const bool is_followed =
      operation.status().ok() && operation.request.caller_stream->follow(*end).ok();
  const Status waited = is_followed ? Status() : wait_for(*end);
  return operation.status().ok() ? waited : operation.status();
}

}  // namespace rdmacoll
