// Root: tries several ways in which a sum can move within a node, and keeps the fastest one for
// each size. A way is an algorithm, and whether data is staged (copied into the pools, where peers
// read it) or read in place (peers read the callers' memory by a system call). Which one is the
// fastest depends on the processor, the caches and the pages of the callers' memory. All ways add
// in canonical order, so results have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agreement/messages.h"
#include "base/clock.h"

namespace rdmacoll {

class Trials {
 public:
  // `row`: the number of sums, 2 at least, that go one way before another one has its turn.
  // `ranks`: the number of ranks that tell their times.
  Trials(int row, int ranks);
  struct Turn {
    std::size_t way = 0;    // its place in the list of ways
    bool is_trial = false;  // no plan can repeat it, since the way is not decided yet
  };
  bool is_empty() const { return sizes_.empty(); }  // no sum has had several ways
  // All sizes have their trials again.
  void restart();
  using Ways = std::vector<uint32_t>;  // each way's number, which is the same in all lists
  // A decision: the name of its first operation, which tells steps apart, and the present time.
  struct Start {
    uint64_t sequence = 0;
    std::string name;
    Nanoseconds now = 0;
  };
  // The way of the next decision, about a sum of `bytes`. The first one of `ways` is the usual way.
  Turn next(const Start& start, uint64_t bytes, const Ways& ways);
  // Whether sums of `bytes` with these ways have had all their trials.
  bool are_decided(uint64_t bytes, const Ways& ways) const;
  // A decision has run on some ranks. The time of the slowest rank counts, since all wait for it.
  void ended(const TrialTime& time);
  // Times that are not here yet do not come. The rounds that need them begin again.
  void forget_times();

 private:
  // In a round each way has a row of sums, one row after the other, so all meet the same load. The
  // first half of a row does not count: the way is cold, and sums of the row before may still be
  // under way. A rival that is not clearly faster than the usual way leaves after the round. A
  // rival that is still there after all rounds replaces the usual way, the fastest one if there are
  // several, unless steps take longer with it.
  static constexpr std::size_t kRounds = 3;
  // If a step has more sums of a size than a row, rows are longer, up to this number of sums.
  static constexpr int kRowMax = 64;

  using Times = std::vector<Nanoseconds>;
  struct Row {
    Times sums;
    Times steps;  // from the decision of a name to that of the same name, both of this row
  };
  struct Begun {
    uint64_t round = 0;
    int sum = 0;  // its number
    Nanoseconds at = 0;
  };
  struct Size {
    std::size_t best = 0;
    std::vector<std::size_t> left;       // the usual way and its rivals; one: the way is decided
    uint64_t round = 0;                  // its number, which no other round of any size has
    int row = 0;                         // sums
    int begun = 0;                       // trials of this round
    int sums = 0;                        // trials of all rounds
    std::vector<std::vector<Row>> rows;  // by way, the rounds that have ended and this one
    std::map<std::string, Begun> named;  // the last decision of each name

    bool is_decided() const { return left.size() == 1; }
  };
  struct Trial {
    Size* size = nullptr;
    uint64_t round = 0;
    int number = 0;
    int64_t awaited = 0;  // ranks that have not told their time
    Nanoseconds slowest = 0;
  };
  void begin(Size& size, std::size_t ways, int row);
  void begin_round(Size& size);
  void count_step(Size& size, const Start& start);
  void judge(Size& size);
  static Nanoseconds time_of_sum(const Size& size, std::size_t way);
  static bool slows_steps(const Size& size, std::size_t way);
  static void decide(Size& size, std::size_t way);
  // The trials of a round.
  static int trials(const Size& size) { return static_cast<int>(size.left.size()) * size.row; }

  const int row_;
  const int ranks_;
  uint64_t rounds_ = 0;  // those that have begun
  // By the binary logarithm of the bytes, and the ways. Sums of one logarithm may have different
  // ways, and come in turns: each list of ways has its own trials.
  std::map<std::pair<int, Ways>, Size> sizes_;
  std::map<uint64_t, Trial> running_;  // by sequence
};

}  // namespace rdmacoll
