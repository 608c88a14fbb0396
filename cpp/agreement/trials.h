// Root: tries several ways in which a sum can move within a node, and keeps the fastest one for
// each size. A way is an algorithm, and whether data is staged (copied into the pools, where peers
// read it) or read in place (peers read the callers' memory by a system call). Which one is the
// fastest depends on the processor, the caches and the pages of the callers' memory. All ways add
// in canonical order, so results have the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace rdmacoll {

class Trials {
 public:
  // `row`: the number of sums, 2 at least, that go one way before another one has its turn.
  explicit Trials(int row);
  struct Turn {
    std::size_t way = 0;    // its place in the list of ways
    bool is_trial = false;  // no plan can repeat it, since the way is not decided yet
  };
  bool is_empty() const { return sizes_.empty(); }  // no sum has had several ways
  // All sizes have their trials again.
  void restart();
  using Ways = std::vector<uint32_t>;  // each way's number, which is the same in all lists
  // The way of the next decision, about a sum of `bytes`, which begins now. The first one of `ways`
  // is the usual way.
  Turn next(uint64_t sequence, uint64_t bytes, const Ways& ways, Nanoseconds now);
  // Whether the decision is a trial that has not ended.
  bool is_timed(uint64_t sequence) const { return running_.contains(sequence); }
  // A decision has run. This rank's time counts for all, since all move the same bytes.
  void ended(uint64_t sequence, Nanoseconds now);

 private:
  // Each other way is a rival of the best one so far, one after the other. The first half of a row
  // does not count: the way is cold, and sums of the row before may still be under way. A row of
  // the best way and the row of the rival after it are a pair, so both meet the same load. The
  // rival must be clearly faster in all kPairs pairs. The first pair in which it is not ends its
  // trials.
  static constexpr int kPairs = 3;
  int trials() const { return 2 * kPairs * row_; }

  using Times = std::vector<Nanoseconds>;
  struct Size {
    std::size_t ways = 0;
    std::size_t best = 0;
    std::size_t rival = 1;  // == ways: all have had their trials
    uint64_t contest = 0;   // the number of the trials of this rival
    int begun = 0;          // trials of this rival
    std::array<Times, std::size_t{2} * kPairs> rows;

    bool is_decided() const { return rival >= ways; }
  };
  struct Trial {
    Size* size = nullptr;
    uint64_t contest = 0;
    int number = 0;
    Nanoseconds began_at = 0;
  };
  void begin(Size& size, std::size_t rival);
  void judge(Size& size);

  const int row_;
  uint64_t contests_ = 0;  // those that have begun
  // By the binary logarithm of the bytes, and the ways. Sums of one logarithm may have different
  // ways, and come in turns: each list of ways has its own trials.
  std::map<std::pair<int, Ways>, Size> sizes_;
  std::map<uint64_t, Trial> running_;  // by sequence
};

}  // namespace rdmacoll
