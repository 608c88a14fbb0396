// Root: detects repeating decisions, so that a plan can replace them.
//
// Plans help all small operations. Those with row counts, as allgather, gain as much as others up
// to 64 KiB. RDMACOLL_PLAN_REPEATS=0 shows it
// (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
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
  static constexpr std::size_t kPeriodMax = 64;  // in decisions
  static constexpr uint64_t kRepeatsMax = 16;
  // Decisions with more row counts are never planned, since plans keep and compare all of them.
  static constexpr std::size_t kRowsMax = 4096;

  // `repeats`: how often a period must occur in a row, at least twice. 0 disables plans. The units
  // of a period may come in any order and batching, since both depend on timing.
  Recurrence(const DescriptorTable& table, uint64_t repeats)
      : table_(table),
        repeats_(std::min(repeats, kRepeatsMax)),
        ends_(repeats == 0 ? 0 : kEnds, End{UINT64_MAX, 0}) {
    if (repeats > 0) ends_.front() = now_;
  }

  // Notes a decision that was taken. No period contains a trial.
  void note(const Decision& decision);
  // Returns the last period once the decisions repeat, and the number of the next unnamed
  // operation.
  struct Period {
    std::vector<PlannedDecision> decisions;
    int64_t next_number = 0;
  };
  std::optional<Period> find() const;

  // A plan was left after `decisions` of its decisions. After a plan that did not pay, the next one
  // must repeat twice as long.
  void plan_ended(std::size_t period, uint64_t decisions);
  // An unnamed operation ended with an error, so the order and the numbers may not continue.
  void forget();

 private:
  // The units before a decision, and the sum of their hashes. The sum does not depend on their
  // order.
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
  int backoff_ = 0;  // number of doublings
  uint64_t noted_ = 0;
  uint64_t since_trial_ = 0;  // decisions noted since the last trial
  int64_t next_number_ = -1;
  std::deque<PlannedDecision> history_;
  std::deque<End> before_;  // for each decision of the history
  End now_, first_;
  std::vector<End> ends_;  // a ring, indexed by the number of units
};

}  // namespace rdmacoll
