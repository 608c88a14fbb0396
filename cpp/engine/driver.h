// Threads around an Engine. All engine calls come from whoever holds the baton: the engine thread
// by default; a caller that waits takes it if it is free and drives the engine itself, since
// handing over to a thread costs ten times what a small allreduce does.
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
#include "base/patience.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/long_wait.h"

namespace rdmacoll {

struct DriverOptions {
  // How long to poll without success before sleeping. A caller has nothing else to do, but does so
  // for less where it was in vain; the engine thread shares the cores with the training.
  Nanoseconds caller_spin = 100 * kMicrosecond;
  Nanoseconds thread_spin = 10 * kMicrosecond;
  // How long the thread that submits a small TensorFlow op drives it, which has others to run.
  Nanoseconds op_spin = 100 * kMicrosecond;
  // More ranks than cores: whoever polls gives way after each turn.
  bool yield = false;
};

class Driver {
 public:
  Driver(Engine& engine, const Transport& transport, const Clock& clock, DriverOptions options);
  ~Driver();

  Status open();  // descriptors
  // Drives until the control tree stands; busy() when `timeout` is over before. It may be asked
  // again at any time, and says then whether a rank was lost meanwhile.
  Status connect(Nanoseconds timeout);
  Status start();  // the engine thread, which a limit may refuse
  // At a parameter server: drives until every worker has left. busy() when `timeout` is over
  // before; an error is that which has ended the world.
  Status serve(Nanoseconds timeout);

  // Any thread.
  Status submit(const OperationRef& operation);
  // The same in one, without waking the engine thread. An error: not accepted. `long_wait` begins
  // before this thread blocks, or has waited for 10 us.
  Status submit_and_wait(const OperationRef& operation, Nanoseconds timeout,
                         LongWait* long_wait = nullptr);
  // Submits, and drives the engine for as long as a caller polls, unless somebody else does: what
  // its peers are ready for ends here, and no thread is woken. The rest is the engine thread's.
  Status submit_and_drive(const OperationRef& operation);
  // Until done or until `timeout` (kNever: no limit) is over; drives the engine if nobody else
  // does.
  bool wait(Operation& operation, Nanoseconds timeout, LongWait* long_wait = nullptr);
  void wake();
  // Runs `read` while nobody steps the engine: for metrics and state.
  template <typename Read>
  auto look(Read read) {
    const Hold hold(*this);
    return read(engine_);
  }

  // Prints the engine's state to stderr as soon as somebody holds the baton. Async-signal-safe.
  void request_state();
  uint64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

  // Says goodbye, waits at most `limit` for what is in flight, fails the rest, ends the thread.
  void stop(const std::string& cause, Nanoseconds limit);

 private:
  class Hold {  // the baton, taken whatever it costs
   public:
    explicit Hold(Driver& driver) : driver_(driver) { driver_.take_baton(); }
    ~Hold() { driver_.leave(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Driver& driver_;
  };

  void ring();
  void run();  // the engine thread
  bool stand_back();
  void call_thread();
  void leave();
  bool try_baton();
  void take_baton();
  void give_baton();
  // With the baton. Until done() or `timeout`, or until somebody else wants the baton, unless it
  // insists. Sleeps when there is nothing to do; with Idle::returns it comes back instead.
  enum class Idle : uint8_t { sleeps, returns };
  struct Limits {
    Nanoseconds timeout = kNever;
    Nanoseconds spin = 0;
    Idle idle = Idle::sleeps;
    bool insists = false;
    LongWait* long_wait = nullptr;
    Nanoseconds since = kNever;  // the first look at the time, from which all of this counts

    bool are_reached(Nanoseconds now) {
      since = std::min(since, now);
      return now - since >= timeout;
    }
    Nanoseconds deadline() const { return timeout == kNever ? kNever : since + timeout; }
  };
  template <typename Done>
  void drive(Done done, Limits& limits);
  template <typename Done>
  void drive(Done done, Limits&& limits) {
    drive(done, limits);
  }
  void visit(Operation& operation, Limits& limits);
  void count_visit() {  // with the baton: nobody else counts
    visits_.store(visits_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void wait_for_baton(Operation& operation, Nanoseconds timeout);
  void end_visit();
  void nudge_waiting();
  // Announces that this thread is about to sleep. False: there is work after all.
  bool fall_asleep();
  bool sleep(const Fd& epoll, Nanoseconds deadline);  // whether the bell has rung
  void silence_bell();

  Engine& engine_;
  const Transport& transport_;
  const Clock& clock_;
  DriverOptions options_;
  Patience patience_;  // of callers, with the baton
  Fd wake_fd_;         // the bell, of whoever has the baton
  Fd get_up_fd_;     // for the engine thread alone: a bell could be silenced by a caller before it
                     // has got up
  Fd thread_epoll_;  // of the engine thread
  Fd caller_epoll_;  // of a caller that sleeps with the baton: an event must wake both
  std::thread thread_;

  std::atomic<uint32_t> baton_{0};    // 1: held
  std::atomic<uint32_t> wanted_{0};   // how many insist on having it
  std::atomic<uint32_t> callers_{0};  // how many are in wait(): the engine thread stays away
  std::atomic<bool> asleep_{false};   // whoever submits must ring

  // While callers come and go the engine thread stands back: the engine is not armed between two
  // calls that leave nothing to do, so no peer rings, and no thread is woken to fight a caller for
  // his core. Whoever leaves something to do, or submits without waiting, calls the thread.
  std::atomic<uint32_t> stands_back_{0};    // 1: it waits on this word
  std::atomic<bool> thread_wanted_{false};  // the last holder left something to do
  std::atomic<bool> thread_sleeps_{false};  // in its epoll set, and nobody has told it to get up
  std::atomic<uint32_t> visits_{0};         // of callers who had the baton, ever
  uint32_t visits_seen_ = 0;                // by the engine thread

  // Callers that sleep because another one has the baton. Who gives it back wakes one.
  std::mutex waiting_mutex_;
  std::vector<Operation*> waiting_;
  std::atomic<uint32_t> waiting_count_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> state_wanted_{false};
  std::atomic<uint64_t> wakeups_{0};
};

}  // namespace rdmacoll
