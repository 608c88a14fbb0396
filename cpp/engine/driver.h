// The threads around an Engine. Every call of the engine comes from the thread that holds the
// baton. By default this is the engine thread. A caller that waits takes the baton if it is free,
// and drives the engine itself. This saves the wake-up of another thread, which costs more than a
// small allreduce.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/spin_policy.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/gil_release.h"
#include "transport/own_core.h"

namespace rdmacoll {

struct DriverOptions {
  // How long to poll without success before sleeping. A caller has nothing else to do, and polls
  // for less if polling was in vain. The engine thread shares its core with the training.
  Nanoseconds caller_spin = 100 * kMicrosecond;
  Nanoseconds thread_spin = 10 * kMicrosecond;
  // For a caller with arrays on a GPU. To sleep, it needs a host function of the GPU's driver
  // behind each step, which takes longer than the steps of a small operation.
  Nanoseconds gpu_spin = 2 * kMillisecond;
  // How long a thread that submits a small TensorFlow op drives it. The thread has other ops to
  // run.
  Nanoseconds op_spin = 100 * kMicrosecond;
  // There are more ranks than cores: a polling thread yields after each turn.
  bool yield = false;
  std::vector<std::vector<int>> numa_nodes = {};  // the cores of each one; empty: unknown
};

class Driver {
 public:
  Driver(Engine& engine, Transport& transport, const Clock& clock, DriverOptions options);
  ~Driver();

  Status open();  // creates the descriptors
  // Drives until the control tree is connected. Returns busy() after `timeout`. May be called at
  // any time, and then reports a rank that was lost meanwhile.
  Status connect(Nanoseconds timeout);
  Status start();  // starts the engine thread, which a resource limit may refuse
  // At a parameter server: drives until every worker has left. Returns busy() after `timeout`, or
  // the error that has ended the world.
  Status serve(Nanoseconds timeout);

  // From any thread.
  Status submit(const OperationRef& operation);
  // submit() and wait() in one call, without waking the engine thread. Returns an error if the
  // operation was not accepted. `gil_release` begins before this thread blocks, or polls for more
  // than 10 us.
  Status submit_and_wait(const OperationRef& operation, Nanoseconds timeout,
                         GilRelease* gil_release = nullptr);
  // Submits, and drives the engine for op_spin unless another thread drives it. If the peers are
  // ready, the operation ends here, and no thread is woken. Otherwise the engine thread completes
  // it. This helps small TensorFlow operations. To see it, return submit(operation) instead
  // (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
  Status submit_and_drive(const OperationRef& operation);
  // Returns when the operation is done, or after `timeout` (kNever: no limit). Drives the engine
  // unless another thread does. Returns whether the operation is done.
  bool wait(Operation& operation, Nanoseconds timeout, GilRelease* gil_release = nullptr);
  void wake();
  // Runs `read` while no thread steps the engine, for metrics and state.
  template <typename Read>
  auto inspect(Read read) {
    const Hold hold(*this);
    return read(engine_);
  }

  // Asks the holder of the baton to print the engine's state to stderr. Async-signal-safe.
  void request_state();
  // Call inside inspect().
  WaitCounters waits() const {
    return {wakeups_.load(std::memory_order_relaxed), own_core_.moves()};
  }

  // Leaves the world, waits at most `limit` for operations in flight, fails the rest, and ends the
  // engine thread.
  void stop(const std::string& cause, Nanoseconds limit);

 private:
  class Hold {  // holds the baton, and waits for it if necessary
   public:
    explicit Hold(Driver& driver) : driver_(driver) { driver_.take_baton(); }
    ~Hold() { driver_.leave(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Driver& driver_;
  };

  void ring();
  void run();  // the main function of the engine thread
  bool stand_back();
  void wake_thread();
  void leave();
  bool try_baton();
  void take_baton();
  void give_baton();
  // Drives while holding the baton, until done() or `timeout`. Without `insists` it also returns
  // when another thread wants the baton. If there is nothing to do, it sleeps, or returns with
  // Idle::returns.
  enum class Idle : uint8_t { sleeps, returns };
  struct Limits {
    Nanoseconds timeout = kNever;
    Nanoseconds spin = 0;
    Idle idle = Idle::sleeps;
    bool insists = false;
    bool learns = true;  // whether earlier waits shorten the polling
    GilRelease* gil = nullptr;
    Nanoseconds since = kNever;  // when the first check of the limits was made

    bool are_reached(Nanoseconds now) {
      since = std::min(since, now);
      return now - since >= timeout;
    }
    Nanoseconds deadline() const { return timeout == kNever ? kNever : since + timeout; }
  };
  Limits limits_of(const Operation& operation, Nanoseconds timeout, GilRelease* gil_release) const {
    const std::vector<TensorRef>& tensors = operation.request.tensors;
    const bool is_on_gpu = !tensors.empty() && tensors.front().gpu != kHost;
    return {.timeout = timeout,
            .spin = is_on_gpu ? options_.gpu_spin : options_.caller_spin,
            .learns = !is_on_gpu,
            .gil = gil_release};
  }
  template <typename Done>
  void drive(Done done, Limits& limits);
  template <typename Done>
  void drive(Done done, Limits&& limits) {
    drive(done, limits);
  }
  void visit(Operation& operation, Limits& limits);
  void count_visit() {  // only the holder of the baton counts
    visits_.store(visits_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void wait_for_baton(Operation& operation, Nanoseconds timeout);
  void end_visit();
  void wake_waiting_caller();
  // Announces that this thread is about to sleep. Returns false if there is work.
  bool fall_asleep();
  bool sleep(const Fd& epoll, Nanoseconds deadline);  // returns whether the bell has rung
  void silence_bell();

  Engine& engine_;
  Transport& transport_;
  const Clock& clock_;
  DriverOptions options_;
  SpinPolicy spin_policy_;
  YieldCost yield_cost_;  // for callers that hold the baton
  OwnCore own_core_;      // for the holder of the baton
  Fd wake_fd_;            // the bell of the thread that holds the baton
  // for the engine thread alone, since a caller could silence the bell before the thread is awake
  Fd thread_wake_fd_;
  Fd thread_epoll_;  // used by the engine thread
  Fd caller_epoll_;  // used by a caller that sleeps with the baton; an event must wake both
  std::thread thread_;

  std::atomic<uint32_t> baton_{0};      // 1: held
  std::atomic<uint32_t> insisting_{0};  // number of threads that insist on the baton
  std::atomic<uint32_t> callers_{0};  // number of threads in wait(); the engine thread stands back
  std::atomic<bool> asleep_{false};   // a thread that submits must ring the bell

  // The engine thread stands back while callers come and go. Between two calls that leave nothing
  // to do, the engine is not armed. No peer rings, and no thread wakes up to compete for the
  // caller's core. A caller that leaves work, or submits without waiting, calls the thread.
  std::atomic<uint32_t> stands_back_{0};    // 1: the engine thread waits on this word
  std::atomic<bool> thread_wanted_{false};  // the last holder left work
  // the engine thread sleeps in its epoll set and was not woken
  std::atomic<bool> thread_sleeps_{false};
  std::atomic<uint32_t> visits_{0};  // number of times that a caller took the baton
  uint32_t visits_seen_ = 0;         // by the engine thread

  // Callers that sleep while another caller has the baton. Each release of the baton wakes one.
  std::mutex waiting_mutex_;
  std::vector<Operation*> waiting_;
  std::atomic<uint32_t> waiting_count_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> state_wanted_{false};
  std::atomic<uint64_t> wakeups_{0};
};

}  // namespace rdmacoll
