// Which decisions come next when nobody takes any: the order that has repeated itself. Also how
// ranks find together again when one of them has something else to do.
//
// A rank takes the next decision of the plan as soon as it has submitted what that names. Since all
// have the same plan from the same sequence on, all take the same decisions; only how far they are
// differs. To leave the plan everybody first stops taking decisions and says how many it has taken;
// what the furthest has started, everybody runs, and there the log goes on.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agreement/descriptor_table.h"
#include "agreement/messages.h"
#include "agreement/readiness.h"
#include "base/world.h"
#include "operation/cut.h"
#include "operation/operation.h"

namespace rdmacoll {

// A decision, and what this rank calls the operations in it.
struct Agreed {
  Decision decision;  // without its rows
  std::vector<UnitKey> keys;
  // The decision's, which operations and recipes share; null: none. In a plan they are the same
  // ones each time.
  RowsRef rows = nullptr;
  bool is_planned = false;
  std::vector<int64_t> own_rows = {};  // planned: what this rank is to say of them (own_rows())
};

class PlanMode {
 public:
  enum class Phase : uint8_t { log, plan, frozen };

  PlanMode(const World& world, const DescriptorTable& table)
      : world_(world), table_(table), children_(tree_children(world.rank, world.size()).size()) {}

  Phase phase() const { return phase_; }
  uint32_t era() const { return era_; }
  std::size_t period() const { return plan_.decisions.size(); }
  uint64_t start() const { return plan_.start; }

  // False: not of the next era, with a number that was never given, or with rows that do not fit.
  bool begin(const PlanMessage& message);
  // Whether the plan names this operation, now or later.
  bool fits(const Operation& operation) const;
  // The decision of this sequence, which is not before the plan's start.
  const Agreed& decision(uint64_t sequence);
  // Whether that is about this operation and no other. One that comes again is not compared again.
  bool is_about(const Agreed& agreed, Operation& operation) const;
  // Whether it has as many rows as planned, where that is its rank's own business.
  bool says_own_rows(const Agreed& agreed, const Operation& operation) const;
  // What all ranks said of their rows when that was decided.
  const RowTable& rows_of(uint64_t sequence) const {
    return plan_.decisions[(sequence - plan_.start) % period()].rows;
  }

  void freeze() { phase_ = Phase::frozen; }
  // How far a child's subtree, or this rank, has come. True when all have said it: see range().
  bool report(uint64_t least, uint64_t furthest);
  uint64_t least() const { return least_; }
  uint64_t furthest() const { return furthest_; }

  // Whether decisions from `least` to `furthest` (excluded) name an operation twice: no two ranks
  // are so far apart, since its next run begins when all ranks have begun this one.
  bool repeats_within(uint64_t least, uint64_t furthest) const;

  void resume(uint32_t era);

 private:
  struct Meaning {  // of a name
    uint32_t descriptor = 0;
    const Agreed* agreed = nullptr;
  };
  bool fits(const Meaning& meaning, const Operation& operation) const;
  bool take_rows(const PlannedDecision& decision, Agreed& agreed) const;
  void go_to(uint64_t sequence);

  const World& world_;
  const DescriptorTable& table_;
  const std::size_t children_;
  Phase phase_ = Phase::log;
  uint32_t era_ = 0;
  PlanMessage plan_;
  std::map<UnitKey, Meaning> named_;
  std::vector<Meaning> numbered_;             // in the order of their numbers
  std::vector<std::size_t> numbered_before_;  // by decision of the period
  std::vector<Agreed> period_;                // as decision() has made them last
  struct {
    uint64_t sequence = 0, times = 0;  // the period has been gone through
    std::size_t place = 0;             // in the period
  } at_;                               // of the last decision that was asked for
  std::size_t reports_ = 0;
  uint64_t least_ = 0;
  uint64_t furthest_ = 0;
};

}  // namespace rdmacoll
