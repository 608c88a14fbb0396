#include "cuda/event_pool.h"

namespace rdmacoll::cuda {

EventPool::~EventPool() {
  if (driver_.is_forked_child()) return;
  for (const auto& [context, events] : free_) {
    const ScopedContext scope(driver_, context);
    if (!scope.status().ok()) continue;  // its owner has ended it, and its events
    for (const EventHandle event : events) driver_.call.cuEventDestroy_v2(event);
  }
}

Status EventPool::take(ContextHandle context, EventHandle& event) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<EventHandle>& free = free_[context];
    if (!free.empty()) {
      event = free.back();
      free.pop_back();
      return {};
    }
  }
  return driver_.check(driver_.call.cuEventCreate(&event, kEventDisableTiming), "cuEventCreate");
}

void EventPool::give_back(ContextHandle context, EventHandle event) {
  const std::lock_guard lock(mutex_);
  free_[context].push_back(event);
}

}  // namespace rdmacoll::cuda
