// Root: notices that the sums of a plan take another time than before, so that other ways may now
// be faster. Trials then take place again. Pure.
//
// The least time of many sums counts. Late callers and other programs make some sums longer, but
// seldom all of them. A caller that is always late counts from the beginning.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.h"

namespace rdmacoll {

class Drift {
 public:
  // `window`: the number of sums whose least time counts. `patience`: the number of sums of one
  // size after which trials may take place again. They cost the sums that go a slower way.
  Drift(int window, uint64_t patience);

  // A plan begins with the decision `start`. `bytes`: of each decision of its period; 0: it is not
  // timed.
  void begin(uint64_t start, std::vector<uint64_t> bytes);
  void end();     // the plan has ended
  void forget();  // trials take place again, so no time counts any more

  bool is_timed(uint64_t sequence) const {
    return !period_.empty() && period_[(sequence - start_) % period_.size()] > 0;
  }
  void started(uint64_t sequence, Nanoseconds now) { running_[sequence] = now; }
  bool is_running(uint64_t sequence) const { return running_.contains(sequence); }
  void ended(uint64_t sequence, Nanoseconds now);

  bool has_drifted() const { return has_drifted_; }

 private:
  struct Size {
    Nanoseconds usual = 0;  // the least time of the first window; 0: the window has not ended
    Nanoseconds least = kNever;
    int left = 0;  // sums of the current window
    uint64_t sums = 0;
  };

  const int window_;
  const uint64_t patience_;
  uint64_t start_ = 0;
  std::vector<uint64_t> period_;             // the bytes of each decision
  std::map<uint64_t, Size> sizes_;           // by bytes
  std::map<uint64_t, Nanoseconds> running_;  // when each decision started
  bool has_drifted_ = false;
};

}  // namespace rdmacoll
