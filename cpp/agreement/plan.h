// A plan: the decisions that ranks run in a repeated order, and its phases. Pure, without messages.
//
// A rank takes the next decision of the plan as soon as its caller has submitted the operations.
// All ranks have the same plan from the same sequence on, so all take the same decisions. They
// differ only in their progress.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agreement/descriptor_table.h"
#include "agreement/keyed_decision.h"
#include "agreement/messages.h"
#include "agreement/readiness.h"
#include "base/set_world.h"
#include "operation/cut.h"
#include "operation/operation.h"

namespace rdmacoll {

class Plan {
 public:
  enum class Phase : uint8_t { log, plan, frozen };

  Plan(const SetWorld& world, const DescriptorTable& table)
      : world_(world), table_(table), children_(tree_children(world.rank(), world.size()).size()) {}

  Phase phase() const { return phase_; }
  uint32_t era() const { return era_; }
  std::size_t period() const { return plan_.decisions.size(); }
  uint64_t start() const { return plan_.start; }

  // Begins a plan. Returns false if the plan is of another era than the next. Also returns false
  // for unknown descriptor numbers, and for row counts that do not fit.
  bool begin(const PlanMessage& message);
  // Whether the plan contains this operation, now or later.
  bool fits(const Operation& operation) const;
  // The decision at `sequence`, which must not be before the plan's start.
  const KeyedDecision& decision(uint64_t sequence);
  // Whether `keyed` is about this operation alone. A positive result is cached in the operation.
  bool is_about(const KeyedDecision& keyed, Operation& operation) const;
  // The planned row counts of all ranks for this decision.
  const RowTable& rows_of(uint64_t sequence) const {
    return plan_.decisions[(sequence - plan_.start) % period()].rows;
  }

  void freeze() { phase_ = Phase::frozen; }
  // Takes the progress of this rank or of a child's subtree. Returns true once all have reported.
  // least() and furthest() then have the range, and kept() is as in FrozenMessage.
  bool report(uint64_t least, uint64_t furthest, uint64_t kept);
  uint64_t least() const { return least_; }
  uint64_t furthest() const { return furthest_; }
  uint64_t kept() const { return kept_; }

  // Whether the decisions from `least` to `furthest` (excluded) name an operation twice. Ranks are
  // never so far apart: the next run of an operation begins only when all ranks have begun this
  // one.
  bool repeats_within(uint64_t least, uint64_t furthest) const;

  void resume(uint32_t era);

 private:
  struct Meaning {  // the operation that a name or number stands for
    uint32_t descriptor = 0;
    const KeyedDecision* keyed = nullptr;
  };
  bool fits(const Meaning& meaning, const Operation& operation) const;
  bool take_rows(const PlannedDecision& decision, KeyedDecision& keyed) const;
  void go_to(uint64_t sequence);

  const SetWorld& world_;
  const DescriptorTable& table_;
  const std::size_t children_;
  Phase phase_ = Phase::log;
  uint32_t era_ = 0;
  PlanMessage plan_;
  std::map<UnitKey, Meaning> named_;
  std::vector<Meaning> numbered_;  // in the order of their numbers
  // number of numbered units before each decision of the period
  std::vector<std::size_t> numbered_before_;
  std::vector<KeyedDecision> period_;  // reused by decision()
  struct {
    uint64_t sequence = 0, times = 0;  // times: completed periods
    std::size_t place = 0;             // position in the period
  } at_;                               // the last decision that decision() returned
  std::size_t reports_ = 0;
  uint64_t least_ = 0;
  uint64_t furthest_ = 0;
  uint64_t kept_ = 0;
};

}  // namespace rdmacoll
