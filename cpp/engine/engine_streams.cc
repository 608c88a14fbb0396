// Operations in memory of GPUs, which wait for their callers' streams.
#include <utility>

#include "engine/engine.h"

namespace rdmacoll {

bool Engine::waits_for_stream(const OperationRef& operation) {
  if (held_.empty() && operation->request.order == nullptr) return false;
  if (!now_.goes_on() || !now_.departed.ok()) return false;  // it ends at once
  bool is_held = false;
  const Status status = held_.hold(operation, is_held);
  if (!status.ok()) fail_this_rank(status);
  return is_held;
}

bool Engine::release_held() {
  if (!now_.goes_on()) {
    end_held(held_.take_all(), now_.failure);
    return true;
  }
  const Status status = held_.release(released_);
  const bool moved = !released_.empty() || !status.ok();
  for (const OperationRef& operation : released_) hand_over(operation);
  released_.clear();
  if (!status.ok()) fail_this_rank(status);
  return moved;
}

void Engine::end_held(const std::vector<OperationRef>& held, const Status& status) {
  for (const OperationRef& operation : held) end(operation, status);
}

}  // namespace rdmacoll
