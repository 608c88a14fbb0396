// The checks of a driver before it sleeps, and before it leaves the engine.
#include <algorithm>

#include "engine/engine.h"
#include "engine/process_set.h"

namespace rdmacoll {
namespace {

constexpr Nanoseconds kFlushInterval = kMillisecond;

}  // namespace

bool Engine::arm() {
  if (!held_.empty() && !held_.arm()) return false;
  // The last step may have released a slot, for example, so that another operation can continue.
  if (!settled_) return false;
  if (!outbox_.empty()) return false;
  if (executor_.has_steps()) return false;
  return executor_.compute().arm() && transport_.arm() && !submissions_.waiting();
}

Nanoseconds Engine::next_deadline() const {
  Nanoseconds next = std::min(transport_.next_deadline(), executor_.compute().next_deadline());
  for (const auto& set : sets_) next = std::min(next, set->next_deadline());
  if (!held_.empty()) next = std::min(next, clock_.now() + held_.wait_max());
  for (const Suspect& suspect : suspects_) next = std::min(next, suspect.due);
  // The flush of the last bytes is no event, so it must be polled.
  if ((!now_.goes_on() || now_.leaving) && !ended_) {
    next = std::min(next, clock_.now() + kFlushInterval);
  }
  return next;
}

bool Engine::needs_driver() const {
  if (ended_) return false;
  return in_flight_ > 0 || submissions_.waiting() || !outbox_.empty() || executor_.has_to_issue() ||
         transport_.needs_poll() || now_.leaving || !now_.goes_on();
}

bool Engine::waits_for_gpu() const {
  return !held_.empty() || executor_.compute().next_deadline() != kNever;
}

bool Engine::started() const {
  return std::all_of(sets_.begin(), sets_.end(),
                     [](const auto& set) { return set->is_connected(); });
}

}  // namespace rdmacoll
