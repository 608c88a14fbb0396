// Sleeping threads: the engine thread and callers, and when the engine thread stands back.
#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "base/event.h"
#include "base/futex.h"
#include "engine/driver.h"

namespace rdmacoll {
namespace {

// The engine thread takes the engine back if no caller has come for this long. Meanwhile no thread
// reads messages of peers. Nothing that this rank has submitted is in flight then. Only the news of
// a failure may be delayed.
constexpr Nanoseconds kStandBack = 20 * kMillisecond;

}  // namespace

// Returns true while callers have the engine, or had it a moment ago, unless the thread was called
// meanwhile.
bool Driver::stand_back() {
  stands_back_.store(1, std::memory_order_seq_cst);
  const uint32_t visits = visits_.load(std::memory_order_relaxed);
  const bool callers = callers_.load(std::memory_order_seq_cst) > 0;
  const bool visited = callers || visits != visits_seen_;
  const bool wanted = !callers && (thread_wanted_.load(std::memory_order_seq_cst) ||
                                   engine_.has_submissions() || stopping_.load());
  visits_seen_ = visits;
  if (visited && !wanted) futex_wait(stands_back_, 1, kStandBack);
  const bool called = stands_back_.exchange(0, std::memory_order_seq_cst) == 0;
  return visited && !wanted && !called;
}

void Driver::wake_thread() {
  if (stands_back_.exchange(0, std::memory_order_seq_cst) == 1) futex_wake_all(stands_back_);
}

bool Driver::fall_asleep() {
  asleep_.store(true, std::memory_order_seq_cst);
  if (engine_.arm()) return true;
  asleep_.store(false, std::memory_order_seq_cst);
  return false;
}

// Does not read the bell. A sleeper that finds the baton taken must leave the bell to the holder,
// whose epoll_wait would otherwise miss it.
bool Driver::sleep(const Fd& epoll, Nanoseconds deadline) {
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  const Nanoseconds left =
      deadline == kNever ? kNever : std::max<Nanoseconds>(0, deadline - clock_.now());
  const int milliseconds =
      left == kNever ? -1
                     : static_cast<int>(std::min<Nanoseconds>(left / kMillisecond + 1, 60'000));
  std::array<epoll_event, 3> events;
  const int count = epoll_wait(epoll.get(), events.data(), events.size(), milliseconds);
  return std::any_of(events.begin(), events.begin() + std::max(count, 0),
                     [this](const auto& event) { return event.data.fd == wake_fd_.get(); });
}

// Requires the baton.
void Driver::silence_bell() { silence(wake_fd_); }

}  // namespace rdmacoll
