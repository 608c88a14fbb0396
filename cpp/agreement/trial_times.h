// How long trials took on this rank and the ranks below it. The times travel with readiness.
//
// A time begins when the rank has the decision, or when its trial before has ended, if that is
// later. So a slow rank's time does not contain the trial before.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "agreement/messages.h"
#include "base/clock.h"

namespace rdmacoll {

class TrialTimes {
 public:
  void began(uint64_t sequence, Nanoseconds now) { running_[sequence] = now; }
  bool is_running(uint64_t sequence) const { return running_.contains(sequence); }
  bool has_running() const { return !running_.empty(); }
  // The trial, which runs, has ended on this rank.
  void ended(uint64_t sequence, Nanoseconds now) {
    const Nanoseconds began = std::max(running_[sequence], ended_at_);
    running_.erase(sequence);
    ended_at_ = now;
    add({sequence, now - began, 1});
  }
  // A time of ranks below. The slowest rank counts.
  void add(const TrialTime& time) {
    TrialTime& known =
        known_.try_emplace(time.sequence, TrialTime{time.sequence, 0, 0}).first->second;
    known.time = std::max(known.time, time.time);
    known.ranks += time.ranks;
    if (known_.size() > kTimesMost) known_.erase(known_.begin());
  }
  // The times that have not been taken yet.
  std::vector<TrialTime> take() {
    std::vector<TrialTime> times;
    for (const auto& [sequence, time] : std::exchange(known_, {})) times.push_back(time);
    return times;
  }
  void forget() {
    running_.clear();
    known_.clear();
  }

 private:
  // A rank that has joined tells no times until it submits again. The oldest ones go: their rounds
  // begin again.
  static constexpr std::size_t kTimesMost = 4096;

  std::map<uint64_t, Nanoseconds> running_;  // when each trial began
  Nanoseconds ended_at_ = 0;                 // the last one
  std::map<uint64_t, TrialTime> known_;
};

}  // namespace rdmacoll
