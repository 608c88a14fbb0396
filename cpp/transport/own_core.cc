#include "transport/own_core.h"

#include <algorithm>

namespace rdmacoll {
namespace {

// A move takes some 0.1 ms in a virtual machine, or a time slice where other programs use the core.
// At most a tenth of the time goes into moves.
constexpr Nanoseconds kRestShare = 10;

cpu_set_t set_of(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  return set;
}

}  // namespace

// Shows peers where this rank waits.
bool OwnCore::is_taken(int core) {
  taken_.clear();
  transport_.show_core(core, taken_);
  return std::ranges::find(taken_, core) != taken_.end();
}

void OwnCore::leave() { is_taken(-1); }

// Binds the thread, which is on `core`, to cores that no peer waits on. Returns false if peers
// leave none, or all, or if the kernel refuses.
bool OwnCore::bind(int core, cpu_set_t& allowed, cpu_set_t& bound) {
  // The kernel refuses if it has more processors than the set has places.
  if (taken_.empty() || is_refused_) return false;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  bound = allowed;
  for (const int taken : taken_) CPU_CLR(taken, &bound);
  if (CPU_COUNT(&bound) == 0 || CPU_EQUAL(&bound, &allowed)) return false;
  for (const std::vector<int>& node : numa_nodes_) {
    if (std::ranges::find(node, core) == node.end()) continue;
    const cpu_set_t near = set_of(node);
    cpu_set_t free;
    CPU_AND(&free, &bound, &near);
    if (CPU_COUNT(&free) > 0) bound = free;
  }
  is_refused_ = ::sched_setaffinity(0, sizeof bound, &bound) != 0;
  return !is_refused_;
}

void OwnCore::find() {
  const int core = ::sched_getcpu();
  if (!is_taken(core)) return;
  const Nanoseconds began = clock_.now();
  if (began < rests_until_) return;
  // A peer on this core runs while this thread moves, and has no reason to move, too.
  leave();
  cpu_set_t allowed, bound;
  if (bind(core, allowed, bound)) {
    ::sched_setaffinity(0, sizeof allowed, &allowed);
    ++moves_;
    const Nanoseconds ended = clock_.now();
    rests_until_ = ended + kRestShare * (ended - began);
  }
  is_taken(::sched_getcpu());
}

OwnCore::Sleep::Sleep(OwnCore& own_core) {
  const int core = ::sched_getcpu();
  const bool moves = own_core.is_taken(core);
  if (moves) own_core.leave();
  is_bound_ = own_core.bind(core, allowed_, bound_);
  if (!moves) return;
  own_core.moves_ += is_bound_ ? 1 : 0;
  own_core.is_taken(::sched_getcpu());
}

OwnCore::Sleep::~Sleep() {
  cpu_set_t now;
  if (!is_bound_ || ::sched_getaffinity(0, sizeof now, &now) != 0) return;
  if (CPU_EQUAL(&now, &bound_)) ::sched_setaffinity(0, sizeof allowed_, &allowed_);
}

}  // namespace rdmacoll
