// Root: tries the two ways in which large sums can move within a node, and keeps the faster one for
// each size. Staged: data is copied into the pools, where peers read it. In place: peers read the
// callers' memory by a system call. Which one is faster depends on the processor, the caches and
// the pages of the callers' memory. Both add in canonical order, so results have the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "base/clock.h"

namespace rdmacoll {

class Trials {
 public:
  struct Way {
    bool in_place = false;
    bool is_trial = false;  // no plan can repeat it, since the way is not decided yet
  };
  // The way of the next decision, about a sum of `bytes`, which begins now.
  Way next(uint64_t sequence, uint64_t bytes, Nanoseconds now);
  // A decision has run. This rank's time counts for all, since all move the same bytes.
  void ended(uint64_t sequence, Nanoseconds now);

 private:
  // Each way is tried in rows of a few sums, since several sums can be under way at once.
  static constexpr int kRow = 3;
  static constexpr int kRows = 4;
  static constexpr int kTrials = kRow * kRows;

  struct Size {  // sums of less than twice as many bytes
    int begun = 0;
    int ended = 0;
    std::array<Nanoseconds, 2> least = {kNever, kNever};  // staged, in place
  };
  struct Trial {
    int size = 0;
    bool in_place = false;
    Nanoseconds began_at = 0;
  };
  static bool is_decided(const Size& size);

  std::array<Size, 64> sizes_ = {};
  std::map<uint64_t, Trial> running_;  // by sequence
};

}  // namespace rdmacoll
