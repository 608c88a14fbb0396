#include "engine/plan_mode.h"

#include <algorithm>

namespace rdmacoll {

bool PlanMode::begin(const PlanMessage& message) {
  if (phase_ != Phase::log || message.era != era_ + 1) return false;
  named_.clear();
  numbered_.clear();
  numbered_before_.clear();
  for (const PlannedDecision& decision : message.decisions) {
    numbered_before_.push_back(numbered_.size());
    for (const PlannedUnit& unit : decision.units) {
      const std::string* descriptor = table_.text(unit.descriptor);
      if (descriptor == nullptr) return false;
      if (unit.numbered) {
        numbered_.push_back(*descriptor);
      } else {
        named_[key(unit, 0)] = *descriptor;
      }
    }
  }
  phase_ = Phase::plan;
  era_ = message.era;
  plan_ = message;
  next_.keys.clear();
  reports_ = 0;
  return true;
}

UnitKey PlanMode::key(const PlannedUnit& unit, int64_t number) const {
  if (unit.numbered) return {"", number};
  return {std::string(descriptor_name(*table_.text(unit.descriptor))), unit.iteration};
}

bool PlanMode::fits(const Operation& operation) const {
  const Request& request = operation.request;
  if (!request.name.empty()) {
    const auto found = named_.find({request.name, request.iteration});
    return found != named_.end() && found->second == operation.descriptor;
  }
  const int64_t ahead = request.iteration - plan_.first_number;
  if (numbered_.empty() || ahead < 0) return false;
  return numbered_[static_cast<std::size_t>(ahead) % numbered_.size()] == operation.descriptor;
}

const Agreed& PlanMode::decision(uint64_t sequence) {
  if (!next_.keys.empty() && next_.decision.sequence == sequence) return next_;
  const uint64_t ahead = sequence - plan_.start;
  const auto place = static_cast<std::size_t>(ahead % period());
  const PlannedDecision& planned = plan_.decisions[place];
  int64_t number = plan_.first_number + static_cast<int64_t>(ahead / period() * numbered_.size() +
                                                             numbered_before_[place]);
  next_.decision = {sequence, planned.algorithm, planned.segment_bytes, {}, {}};
  next_.keys.clear();
  for (const PlannedUnit& unit : planned.units) {
    next_.keys.push_back(key(unit, number));
    next_.decision.units.push_back({{unit.descriptor, {}}, next_.keys.back().iteration});
    if (unit.numbered) ++number;
  }
  return next_;
}

bool PlanMode::report(uint64_t least, uint64_t furthest) {
  least_ = reports_ == 0 ? least : std::min(least_, least);
  furthest_ = reports_ == 0 ? furthest : std::max(furthest_, furthest);
  return ++reports_ == children_ + 1;
}

void PlanMode::resume(uint32_t era) {
  phase_ = Phase::log;
  era_ = era;
}

}  // namespace rdmacoll
