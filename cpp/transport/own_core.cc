#include "transport/own_core.h"

#include <algorithm>

namespace rdmacoll {

// Shows peers where this rank waits.
bool OwnCore::is_taken(int core) {
  taken_.clear();
  if (core >= 0) transport_.show_core(core, taken_);
  return std::ranges::find(taken_, core) != taken_.end();
}

// Binds the thread to the cores that peers leave. Returns false if they leave none, or all.
bool OwnCore::bind(cpu_set_t& allowed) const {
  // The kernel refuses if it has more processors than the set has places.
  if (taken_.empty() || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t free = allowed;
  for (const int core : taken_) CPU_CLR(core, &free);
  if (CPU_COUNT(&free) == 0 || CPU_EQUAL(&free, &allowed)) return false;
  return ::sched_setaffinity(0, sizeof free, &free) == 0;
}

void OwnCore::find() {
  if (!is_taken(::sched_getcpu())) return;
  const Nanoseconds began = clock_.now();
  cpu_set_t allowed;
  if (move_cost_.is_high(began) || !bind(allowed)) return;
  ::sched_setaffinity(0, sizeof allowed, &allowed);
  move_cost_.yielded(began, clock_.now());
  ++moves_;
  is_taken(::sched_getcpu());  // peers on the old core then stay there
}

OwnCore::Sleep::Sleep(OwnCore& own_core) {
  const bool moves = own_core.is_taken(::sched_getcpu());
  is_bound_ = own_core.bind(allowed_);
  if (!moves || !is_bound_) return;
  ++own_core.moves_;
  own_core.is_taken(::sched_getcpu());
}

OwnCore::Sleep::~Sleep() {
  if (is_bound_) ::sched_setaffinity(0, sizeof allowed_, &allowed_);
}

}  // namespace rdmacoll
