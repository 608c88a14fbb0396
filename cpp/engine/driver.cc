#include "engine/driver.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>

#include "base/event.h"
#include "base/futex.h"
#include "base/processor_hints.h"
#include "base/system_error.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/time_slice.h"

namespace rdmacoll {
namespace {

// Waiters are woken when the baton is free. These limits bound the cost of a lost race.
constexpr Nanoseconds kBatonTimeout = kMillisecond;
constexpr Nanoseconds kCallerTimeout = 20 * kMillisecond;
constexpr Nanoseconds kBatonSpin = 20 * kMicrosecond;
// While there is work, drive() checks its limits once in this many turns.
constexpr uint32_t kTurnsPerLook = 16;
// A thread that polls longer yields after each turn. The peer that it waits for, or the thread that
// feeds this peer, may share its core.
constexpr Nanoseconds kSpinAlone = 10 * kMicrosecond;
// How long a failed start continues to inform other ranks, since some may not be connected yet.
constexpr Nanoseconds kNewsLimit = 300 * kMillisecond;

void relax(bool yield) {
  if (yield) {
    sched_yield();
  } else {
    relax_core();
  }
}

}  // namespace

Driver::Driver(Engine& engine, Transport& transport, const Clock& clock, DriverOptions options)
    : engine_(engine),
      transport_(transport),
      clock_(clock),
      options_(options),
      spin_policy_(options.caller_spin),
      own_core_(transport, clock, options.numa_nodes) {}

Driver::~Driver() { stop("", 0); }

Status Driver::open() {
  wake_fd_ = make_event();
  thread_wake_fd_ = make_event();
  for (Fd* epoll : {&thread_epoll_, &caller_epoll_}) {
    *epoll = Fd(epoll_create1(EPOLL_CLOEXEC));
    if (!*epoll || !wake_fd_ || !thread_wake_fd_) {
      return system_error("cannot make the engine's descriptors", errno);
    }
    for (int fd : {wake_fd_.get(), transport_.wait_handle()}) {
      if (fd < 0) continue;
      RC_RETURN_IF_ERROR(watch(epoll->get(), fd, {.events = EPOLLIN, .data = {.fd = fd}}));
    }
  }
  return watch(thread_epoll_.get(), thread_wake_fd_.get(),
               {.events = EPOLLIN, .data = {.fd = thread_wake_fd_.get()}});
}

Status Driver::connect(Nanoseconds timeout) {
  const Hold hold(*this);
  drive([this] { return engine_.started() || !engine_.start_failure().ok(); },
        {.timeout = timeout, .spin = options_.caller_spin, .insists = true});
  own_core_.leave();  // later calls may wait elsewhere, or never
  const Status failure = engine_.start_failure();
  if (failure.ok()) return engine_.started() ? Status() : Status::busy();
  // The engine thread may not run yet, so this thread sends the news.
  drive([this] { return engine_.may_end(); }, {.timeout = kNewsLimit, .insists = true});
  return failure;
}

Status Driver::start() {
  return start_thread(thread_, "the engine's thread", [this] { run(); });
}

Status Driver::serve(Nanoseconds timeout) {
  callers_.fetch_add(1, std::memory_order_seq_cst);
  Status status = Status::busy();
  {
    const Hold hold(*this);
    const auto is_over = [this] {
      return engine_.have_workers_left() || !engine_.failure().ok() || stopping_.load();
    };
    drive(is_over, {.timeout = timeout, .spin = options_.caller_spin});
    if (is_over()) status = engine_.failure();
    if (stopping_.load()) status = {Code::shutdown, "rdmacoll was shut down while it served."};
  }
  end_visit();
  return status;
}

// ---- any thread ----

Status Driver::submit(const OperationRef& operation) {
  RC_RETURN_IF_ERROR(engine_.submit(operation));
  wake();
  return {};
}

void Driver::wake() {
  if (asleep_.load(std::memory_order_seq_cst)) {
    ring();
  } else if (callers_.load(std::memory_order_seq_cst) == 0) {
    wake_thread();
  }
}

void Driver::request_state() {
  state_wanted_.store(true);
  ring();
}

void Driver::ring() { rdmacoll::ring(wake_fd_); }

Status Driver::submit_and_wait(const OperationRef& operation, Nanoseconds timeout,
                               GilRelease* gil_release) {
  Limits limits = limits_of(*operation, timeout, gil_release);
  Status status;
  callers_.fetch_add(1, std::memory_order_seq_cst);
  if (insisting_.load() == 0 && try_baton()) {
    count_visit();
    status = engine_.take(operation);
    if (status.ok()) drive([&] { return operation->done(); }, limits);
    leave();
  } else {
    status = engine_.submit(operation);  // no bell, since this thread drives the engine next
  }
  if (status.ok()) visit(*operation, limits);
  end_visit();
  return status;
}

Status Driver::submit_and_drive(const OperationRef& operation) {
  RC_RETURN_IF_ERROR(engine_.submit(operation));
  callers_.fetch_add(1, std::memory_order_seq_cst);
  if (insisting_.load() == 0 && try_baton()) {
    count_visit();
    operation->is_driven_by_caller = true;
    drive([&] { return operation->done(); },
          {.timeout = options_.op_spin, .spin = options_.op_spin, .idle = Idle::returns});
    operation->is_driven_by_caller = false;
    leave();
  } else {
    wake();
  }
  end_visit();
  return {};
}

bool Driver::wait(Operation& operation, Nanoseconds timeout, GilRelease* gil_release) {
  if (operation.done()) return true;
  callers_.fetch_add(1, std::memory_order_seq_cst);
  Limits limits = limits_of(operation, timeout, gil_release);
  visit(operation, limits);
  end_visit();
  return operation.done();
}

// Waits for an operation. The caller is counted in callers_.
void Driver::visit(Operation& operation, Limits& limits) {
  Nanoseconds refused_at = 0;
  while (!operation.done()) {
    if (insisting_.load() == 0 && try_baton()) {
      count_visit();
      drive([&] { return operation.done(); }, limits);
      leave();
      refused_at = 0;
    } else {
      if (limits.gil != nullptr) limits.gil->begin();
      const Nanoseconds now = clock_.now();
      if (refused_at == 0) {
        refused_at = now;
        wake();  // the holder may sleep, unaware of an operation submitted without a bell
      }
      if (limits.are_reached(now)) return;
      // the engine thread yields to callers
      if (now - refused_at < kBatonSpin) {
        relax(options_.yield);
      } else {
        wait_for_baton(operation, std::min(limits.deadline() - now, kCallerTimeout));
      }
    }
    if (operation.done() || limits.are_reached(clock_.now())) return;
  }
}

// The last caller calls the engine thread for threads that saw a caller when they submitted.
void Driver::end_visit() {
  const bool last = callers_.fetch_sub(1, std::memory_order_seq_cst) == 1;
  if (last && (thread_wanted_.load() || engine_.has_submissions())) wake_thread();
}

// Sleeps until the operation is done, or until the baton may be free.
void Driver::wait_for_baton(Operation& operation, Nanoseconds timeout) {
  {
    const std::lock_guard lock(waiting_mutex_);
    waiting_.push_back(&operation);
    waiting_count_.fetch_add(1, std::memory_order_seq_cst);
  }
  // A thread that releases the baton either sees this caller in the list, or has released it before
  // this check.
  const uint32_t ticket = operation.ticket();
  if (baton_.load(std::memory_order_seq_cst) == 1) operation.wait(ticket, timeout);
  const std::lock_guard lock(waiting_mutex_);
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &operation));
  waiting_count_.fetch_sub(1, std::memory_order_seq_cst);
}

void Driver::wake_waiting_caller() {
  const std::lock_guard lock(waiting_mutex_);
  if (!waiting_.empty()) waiting_.front()->nudge();
}

// Releases the baton.
void Driver::leave() {
  if (engine_.needs_driver()) {
    // Arms the engine like a sleeper, so that later events ring the bell. The engine thread may
    // sleep already, until a deadline that was found before there was work on a GPU.
    thread_wanted_.store(true, std::memory_order_seq_cst);
    if (!fall_asleep() || engine_.waits_for_gpu()) ring();
    give_baton();
    if (callers_.load() == 0) wake_thread();
    return;
  }
  // The engine thread does not know that its sleep is disarmed. Once awake, it checks every
  // kStandBack.
  if (thread_sleeps_.load(std::memory_order_relaxed) && thread_sleeps_.exchange(false)) {
    rdmacoll::ring(thread_wake_fd_);
  }
  give_baton();
}

// ---- the engine thread ----

void Driver::run() {
  pthread_setname_np(pthread_self(), "rdmacoll");
  ShortTimeSlice short_slice;
  short_slice.begin();
  bool rung = false;
  while (!stopping_.load()) {
    if (stand_back()) continue;
    if (insisting_.load() > 0 || !try_baton()) {
      futex_wait(baton_, 1, kBatonTimeout);
      continue;
    }
    if (rung) silence_bell();
    drive([this] { return stopping_.load() || callers_.load() > 0; },
          {.spin = options_.thread_spin, .idle = Idle::returns});
    // The silenced bell may have been the one of stop().
    const bool quiet = !stopping_.load() && fall_asleep();
    const Nanoseconds deadline = engine_.next_deadline();
    thread_wanted_.store(engine_.needs_driver());
    thread_sleeps_.store(quiet, std::memory_order_relaxed);  // ordered by the release of the baton
    give_baton();
    // From here on a caller may drive. This disarms the sleep. A caller that leaves work arms it
    // again, and later events still reach this epoll set.
    rung = quiet && sleep(thread_epoll_, deadline);
    thread_sleeps_.store(false);
    if (quiet) silence(thread_wake_fd_);
  }
}

// ---- the baton ----

bool Driver::try_baton() {
  uint32_t free = 0;
  if (!baton_.compare_exchange_strong(free, 1, std::memory_order_acquire)) return false;
  // Only the holder of the baton writes it, so this thread sees the last holder's value.
  if (asleep_.load(std::memory_order_relaxed)) asleep_.store(false, std::memory_order_seq_cst);
  thread_wanted_.store(false, std::memory_order_relaxed);
  return true;
}

void Driver::take_baton() {
  insisting_.fetch_add(1);
  while (!try_baton()) {
    ring();  // the holder may sleep
    futex_wait(baton_, 1, kBatonTimeout);
  }
  insisting_.fetch_sub(1);
}

void Driver::give_baton() {
  baton_.store(0, std::memory_order_seq_cst);
  if (insisting_.load() > 0 || stopping_.load()) futex_wake_all(baton_);
  if (waiting_count_.load(std::memory_order_seq_cst) > 0) wake_waiting_caller();
}

template <typename Done>
void Driver::drive(Done done, Limits& limits) {
  Nanoseconds idle_since = 0;
  Nanoseconds yielded_at = 0;  // when the last turn yielded the processor; 0: it did not
  // Callers keep cores of their own. The other threads wait beside the training's, on whose cores
  // they are woken.
  const bool owns_core = !options_.yield && limits.idle == Idle::sleeps;
  Nanoseconds looked_at = 0;  // in the wait since then, a core has been looked for
  ShortTimeSlice short_slice;
  uint32_t turns = 0;
  while (!done()) {
    if (state_wanted_.load(std::memory_order_relaxed) && state_wanted_.exchange(false)) {
      std::fputs(engine_.state().c_str(), stderr);
    }
    // If ranks share a core, a peer can answer only after this thread yields.
    const bool moved = engine_.progress() && !(options_.yield && engine_.is_settled());
    if (yielded_at > 0) yield_cost_.yielded(std::exchange(yielded_at, 0), engine_.turned_at());
    if (moved) idle_since = 0;
    if (moved && limits.gil == nullptr && ++turns % kTurnsPerLook != 0) continue;
    if (done() || (!limits.insists && insisting_.load(std::memory_order_relaxed) > 0)) return;
    const Nanoseconds now = engine_.turned_at();
    if (limits.are_reached(now)) return;
    if (limits.gil != nullptr && now - limits.since > kSpinAlone) limits.gil->begin();
    if (moved) continue;
    if (idle_since == 0) idle_since = now;
    // Starts and ends insist. Their waits say nothing about later waits.
    const bool learns = limits.learns && limits.idle == Idle::sleeps && !limits.insists;
    const bool loses_core = learns && !options_.yield && yield_cost_.is_high(now);
    const Nanoseconds spin = learns ? spin_policy_.spin() : limits.spin;
    if (now - idle_since < (loses_core ? std::min(spin, kSpinAlone) : spin)) {
      const bool yields = options_.yield || now - idle_since > kSpinAlone;
      if (yields && owns_core && std::exchange(looked_at, idle_since) != idle_since) {
        own_core_.find();
      }
      relax(yields);
      if (yields) yielded_at = now;
      continue;
    }
    if (limits.idle == Idle::returns) return;
    if (limits.gil != nullptr) limits.gil->begin();
    if (loses_core) short_slice.begin();
    std::optional<OwnCore::Sleep> on_own_core;
    if (owns_core && !yield_cost_.is_high(now)) {
      on_own_core.emplace(own_core_);
      if (on_own_core->is_bound()) short_slice.begin();  // another thread may have this core then
    }
    if (fall_asleep()) {
      if (sleep(caller_epoll_, std::min(limits.deadline(), engine_.next_deadline()))) {
        silence_bell();
      }
      if (learns) spin_policy_.slept(clock_.now() - idle_since);
    }
    asleep_.store(false, std::memory_order_seq_cst);
    idle_since = 0;
  }
}

// ---- the end ----

void Driver::stop(const std::string& cause, Nanoseconds limit) {
  if (stopping_.load()) return;
  {
    const Hold hold(*this);
    if (stopping_.load()) return;
    engine_.leave(cause);
    drive([this] { return engine_.may_end(); }, {.timeout = limit, .insists = true});
    engine_.end();
    stopping_.store(true);
  }
  ring();
  wake_thread();
  futex_wake_all(baton_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace rdmacoll
