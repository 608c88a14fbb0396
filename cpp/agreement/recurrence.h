// Root: whether the decisions repeat themselves, so that a plan can take their place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "agreement/descriptor_table.h"
#include "agreement/messages.h"

namespace rdmacoll {

class Recurrence {
 public:
  static constexpr std::size_t kPeriodMax = 64;  // decisions
  static constexpr uint64_t kRepeatsMax = 16;
  // A decision with more numbers of rows is in no plan: it is compared each time, and kept.
  static constexpr std::size_t kRowsMax = 4096;

  // A period has to come `repeats` times in a row, twice at least; 0: nothing is ever planned. Its
  // units may come in another order, and in other company, each time: that depends on timing.
  Recurrence(const DescriptorTable& table, uint64_t repeats)
      : table_(table),
        repeats_(std::min(repeats, kRepeatsMax)),
        ends_(repeats == 0 ? 0 : kEnds, End{UINT64_MAX, 0}) {
    if (repeats > 0) ends_.front() = now_;
  }

  // A decision that was taken.
  void note(const Decision& decision);
  // Once the last decisions are repetitions: the last period of them, and the number that the next
  // unnamed operation has.
  struct Period {
    std::vector<PlannedDecision> decisions;
    int64_t next_number = 0;
  };
  std::optional<Period> find() const;

  // The plan was left after so many of its decisions. One that did not pay makes the next one wait
  // twice as long.
  void plan_ended(std::size_t period, uint64_t decisions);
  // The order is broken, and so may the numbers be: an unnamed operation has ended with an error.
  void forget();

 private:
  // After each decision: how many units there were so far, and the sum of their hashes, which does
  // not depend on their order.
  struct End {
    uint64_t units = 0;
    uint64_t sum = 0;
  };
  static constexpr std::size_t kEnds = 1 << 14;
  std::optional<PlannedDecision> planned(const Decision& decision);
  bool repeats(const End& before) const;
  bool has_one_meaning(const std::vector<PlannedDecision>& decisions) const;
  void restart();

  const DescriptorTable& table_;
  uint64_t repeats_;
  int patience_ = 0;  // doublings
  uint64_t noted_ = 0;
  int64_t next_number_ = -1;
  std::deque<PlannedDecision> history_;
  std::deque<End> before_;  // each decision of the history
  End now_, first_;
  std::vector<End> ends_;  // by the number of units, in a circle
};

}  // namespace rdmacoll
