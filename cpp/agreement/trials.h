// Root: tries the two ways in which large sums can move within a node, and keeps the faster one for
// each size. Staged: data is copied into the pools, where peers read it. In place: peers read the
// callers' memory by a system call. Which one is faster depends on the processor, the caches and
// the pages of the callers' memory. Both add in canonical order, so results have the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.h"

namespace rdmacoll {

class Trials {
 public:
  // `row`: the number of sums, 2 at least, that go one way before the other one has its turn.
  explicit Trials(int row);
  struct Way {
    bool in_place = false;
    bool is_trial = false;  // no plan can repeat it, since the way is not decided yet
  };
  // The way of the next decision, about a sum of `bytes`, which begins now.
  Way next(uint64_t sequence, uint64_t bytes, Nanoseconds now);
  // A decision has run. This rank's time counts for all, since all move the same bytes.
  void ended(uint64_t sequence, Nanoseconds now);

 private:
  // The first half of a row does not count: the way is cold, and sums of the row before may still
  // be under way. A staged row and the row in place after it are a pair, so both meet the same
  // load. In place must be clearly faster in all kPairs pairs. The first pair in which it is not
  // ends the trials.
  static constexpr int kPairs = 3;
  int trials() const { return 2 * kPairs * row_; }

  using Times = std::vector<Nanoseconds>;
  struct Size {  // sums of less than twice as many bytes
    bool is_decided = false;
    bool in_place = false;
    int begun = 0;
    std::array<Times, std::size_t{2} * kPairs> rows;
  };
  struct Trial {
    int size = 0;
    int number = 0;
    Nanoseconds began_at = 0;
  };
  void judge(Size& size) const;

  const int row_;
  std::map<int, Size> sizes_;          // by the binary logarithm
  std::map<uint64_t, Trial> running_;  // by sequence
};

}  // namespace rdmacoll
