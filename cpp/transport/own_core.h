// Gives a rank that waits a core of its own, if its peers leave one.
//
// The scheduler may put a woken thread on the core of its waker, although another core is idle. In
// a virtual machine it takes an idle core for one that the host has taken away. Two ranks that wait
// for each other then take turns on one core. Each turn is so short that the scheduler's balancer
// moves none of them for tens of milliseconds (docs/measurements/2026-11-30-cores-of-ranks.md).
#pragma once

#include <sched.h>

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/spin_policy.h"
#include "transport/transport.h"

namespace rdmacoll {

// All calls come from the thread that waits for peers. Its affinity is the same after each of them.
class OwnCore {
 public:
  OwnCore(Transport& transport, const Clock& clock) : transport_(transport), clock_(clock) {}

  // Call it once in a wait that takes long. If a peer has waited on this thread's core last, the
  // thread moves to a core on which no peer has.
  void find();
  uint64_t moves() const { return moves_; }

  // A sleep from which the thread wakes on no core of a peer.
  class Sleep {
   public:
    explicit Sleep(OwnCore& own_core);
    ~Sleep();
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;

   private:
    bool is_bound_ = false;
    cpu_set_t allowed_ = {};
  };

 private:
  bool is_taken(int core);
  bool bind(cpu_set_t& allowed) const;

  Transport& transport_;
  const Clock& clock_;
  std::vector<int> taken_;             // the cores of peers
  YieldCost move_cost_{kMillisecond};  // a move to a core that others use takes their time slice
  uint64_t moves_ = 0;
};

}  // namespace rdmacoll
