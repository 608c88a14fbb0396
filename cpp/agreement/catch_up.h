// The decisions that some ranks had started, and others had not, when a plan ended. A rank that is
// behind runs such a decision when its caller submits the operations. No rank reports the result
// until every rank has submitted the operation or heard its error. A rank that never submits takes
// part with zeros.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "agreement/keyed_decision.h"

namespace rdmacoll {

class CatchUp {
 public:
  // `keyed` belongs to the plan that has ended. `is_started`: this rank has started and announced
  // it.
  void expect(const KeyedDecision& keyed, bool is_started) {
    for (const UnitKey& key : keyed.keys) units_[key] = {keyed.decision.sequence, is_started};
    missing_[keyed.decision.sequence] = {keyed.keys.size(), keyed.keys.size()};
  }
  // This rank has announced an operation, which it may have to catch up with.
  void announced(const UnitKey& key) {
    const auto found = units_.find(key);
    if (found != units_.end()) found->second.is_announced = true;
  }
  bool empty() const { return missing_.empty(); }
  bool waits(uint64_t sequence) const { return missing_.contains(sequence); }
  bool names(const UnitKey& key) const { return units_.contains(key); }
  bool has_announced(const UnitKey& key) const { return units_.at(key).is_announced; }
  uint64_t sequence_of(const UnitKey& key) const { return units_.at(key).sequence; }
  // Whether every rank has some units of a decision, and not the others.
  bool waits_for_parts() const {
    return std::ranges::any_of(
        missing_, [](const auto& entry) { return entry.second.units < entry.second.all; });
  }
  // The first unit of the decision that has not caught up, or null.
  const UnitKey* unit_of(uint64_t sequence) const {
    for (const auto& [key, unit] : units_) {
      if (unit.sequence == sequence) return &key;
    }
    return nullptr;
  }

  // Called when every rank has the unit or hears its verdict. Returns the sequence of the decision
  // once none of its units is missing. The root counts units; the other ranks receive a
  // CaughtUpMessage.
  std::optional<uint64_t> unit_caught_up(const UnitKey& key) {
    const auto found = units_.find(key);
    if (found == units_.end()) return std::nullopt;
    const uint64_t sequence = found->second.sequence;
    units_.erase(found);
    if (--missing_[sequence].units > 0) return std::nullopt;
    return sequence;
  }
  void caught_up(uint64_t sequence) {
    missing_.erase(sequence);
    std::erase_if(units_, [&](const auto& entry) { return entry.second.sequence == sequence; });
  }

 private:
  struct Unit {
    uint64_t sequence = 0;
    bool is_announced = false;
  };
  std::map<UnitKey, Unit> units_;
  struct Missing {
    std::size_t units = 0, all = 0;
  };
  std::map<uint64_t, Missing> missing_;  // the number of missing units, by sequence
};

}  // namespace rdmacoll
