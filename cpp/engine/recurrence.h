// Root: whether the decisions repeat themselves, so that a plan can take their place.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/descriptor_table.h"
#include "engine/messages.h"

namespace rdmacoll {

class Recurrence {
 public:
  static constexpr std::size_t kPeriodMax = 128;  // decisions

  // A period has to come `repeats` times in a row, twice at least; 0: nothing is ever planned.
  Recurrence(const DescriptorTable& table, uint64_t repeats) : table_(table), repeats_(repeats) {}

  // A decision that was taken.
  void note(const Decision& decision);
  // Once the last decisions are repetitions: one period of them, and the number that the next
  // unnamed operation has.
  struct Period {
    std::vector<PlannedDecision> decisions;
    int64_t next_number = 0;
  };
  std::optional<Period> find() const;

  // The plan was left after so many of its decisions. One that did not pay makes the next one wait
  // twice as long.
  void plan_ended(std::size_t period, uint64_t decisions);

 private:
  std::optional<PlannedDecision> planned(const Decision& decision);
  void forget();

  const DescriptorTable& table_;
  uint64_t repeats_;
  int patience_ = 0;  // doublings
  int64_t next_number_ = -1;
  std::deque<PlannedDecision> history_;
  std::array<uint64_t, kPeriodMax + 1> runs_{};  // by period: repetitions in a row
};

}  // namespace rdmacoll
