// Two threads that wait for each other, which times a cache line, or a switch of a core.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace rdmacoll::probe {

// Two threads that hand a number to each other, each in a line of its own. They give up at `end`,
// since one of them may wait for its core on a busy machine. If they share a core, each gives it
// away while it waits.
class PingPong {
 public:
  PingPong(const Clock& clock, Nanoseconds end, bool shares_core = false)
      : clock_(clock), end_(end), shares_core_(shares_core) {}

  // Waits for the other one's next number. False: it has ended, or the time is over.
  bool await_ping() {
    uint64_t yields = 0;
    return differs(ping_, seen_, seen_, yields) && seen_ != kEnd;
  }
  void pong() { pong_.value.store(seen_, std::memory_order_release); }
  // Returns whether the other one has answered.
  bool turn() {
    ping_.value.store(++round_, std::memory_order_release);
    uint32_t answer = 0;
    return differs(pong_, round_ - 1, answer, yields_);
  }
  // How often turn() has given its core away.
  uint64_t yields() const { return yields_; }
  void end() { ping_.value.store(kEnd, std::memory_order_release); }

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct alignas(128) Line {
    std::atomic<uint32_t> value{0};
  };

  // The clock is read seldom, since a reading takes a part of a line's time.
  bool differs(const Line& line, uint32_t from, uint32_t& value, uint64_t& yields) const {
    for (uint32_t looks = 1;; ++looks) {
      value = line.value.load(std::memory_order_acquire);
      if (value != from) return true;
      if (shares_core_) {
        sched_yield();
        ++yields;
      }
      if (looks % 256 == 0 && clock_.now() >= end_) return false;
    }
  }

  const Clock& clock_;
  Nanoseconds end_;
  bool shares_core_;
  Line ping_, pong_;
  uint32_t seen_ = 0;   // the last number that the other one took
  uint32_t round_ = 0;  // the last one that this one gave
  uint64_t yields_ = 0;
};

}  // namespace rdmacoll::probe
