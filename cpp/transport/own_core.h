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
#include "transport/transport.h"

namespace rdmacoll {

// The peers are those that share memory with this rank. Threads use it in turn: the one that waits
// has the transport.
class OwnCore {
 public:
  // `numa_nodes`: the cores of each one. A thread that moves stays on its node if it can.
  OwnCore(Transport& transport, const Clock& clock, std::vector<std::vector<int>> numa_nodes)
      : transport_(transport), clock_(clock), numa_nodes_(std::move(numa_nodes)) {}

  // Call it once in a wait that takes long. If a peer has waited on this thread's core last, the
  // thread moves to a core on which no peer has. Its affinity stays.
  void find();
  // Shows peers that this rank waits nowhere.
  void leave();
  uint64_t moves() const { return moves_; }

  // A sleep from which the thread wakes on no core of a peer, if peers leave one. Afterwards it has
  // the affinity of before, unless another thread has changed it meanwhile.
  class Sleep {
   public:
    explicit Sleep(OwnCore& own_core);
    ~Sleep();
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;

    bool is_bound() const { return is_bound_; }

   private:
    bool is_bound_ = false;
    cpu_set_t allowed_ = {}, bound_ = {};
  };

 private:
  bool is_taken(int core);
  bool bind(int core, cpu_set_t& allowed, cpu_set_t& bound);

  Transport& transport_;
  const Clock& clock_;
  const std::vector<std::vector<int>> numa_nodes_;
  std::vector<int> taken_;  // the cores of peers
  bool is_refused_ = false;
  Nanoseconds rests_until_ = 0;
  uint64_t moves_ = 0;
};

}  // namespace rdmacoll
