#include "cuda/event_pool.h"

namespace rdmacoll::cuda {

EventPool::~EventPool() {
  if (driver_.is_forked_child()) return;
  for (const auto& [context, events] : free_.take_all()) {
    const ScopedContext scope(driver_, context);
    if (!scope.status().ok()) continue;  // its owner has ended it, and its events
    for (const EventHandle event : events) driver_.call.cuEventDestroy_v2(event);
  }
}

Status EventPool::take(ContextHandle context, EventHandle& event) {
  if (const auto free = free_.take(context)) {
    event = *free;
    return {};
  }
  return driver_.check(driver_.call.cuEventCreate(&event, kEventDisableTiming), "cuEventCreate");
}

}  // namespace rdmacoll::cuda
