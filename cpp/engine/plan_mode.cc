#include "engine/plan_mode.h"

#include <algorithm>

namespace rdmacoll {
namespace {

// Of a numbered unit: without its number.
UnitKey key_of(const PlannedUnit& unit, const std::string& descriptor) {
  if (unit.numbered) return {};
  return {std::string(descriptor_name(descriptor)), unit.iteration};
}

}  // namespace

bool PlanMode::begin(const PlanMessage& message) {
  if (phase_ != Phase::log || message.era != era_ + 1) return false;
  named_.clear();
  numbered_.clear();
  numbered_before_.clear();
  period_.clear();
  for (const PlannedDecision& decision : message.decisions) {
    numbered_before_.push_back(numbered_.size());
    Agreed& agreed = period_.emplace_back();
    agreed.decision = {0, decision.algorithm, decision.segment_bytes, {}, {}};
    for (const PlannedUnit& unit : decision.units) {
      const std::string* descriptor = table_.text(unit.descriptor);
      if (descriptor == nullptr) return false;
      const UnitKey key = key_of(unit, *descriptor);
      agreed.keys.push_back(key);
      agreed.decision.units.push_back({{unit.descriptor, {}}, key.iteration});
      if (unit.numbered) {
        numbered_.push_back(*descriptor);
      } else {
        named_[key] = *descriptor;
      }
    }
  }
  phase_ = Phase::plan;
  era_ = message.era;
  plan_ = message;
  reports_ = 0;
  return true;
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
  const uint64_t ahead = sequence - plan_.start;
  const auto place = static_cast<std::size_t>(ahead % period());
  const PlannedDecision& planned = plan_.decisions[place];
  int64_t number = plan_.first_number + static_cast<int64_t>(ahead / period() * numbered_.size() +
                                                             numbered_before_[place]);
  Agreed& agreed = period_[place];
  agreed.decision.sequence = sequence;
  for (std::size_t i = 0; i < planned.units.size(); ++i) {
    if (!planned.units[i].numbered) continue;
    agreed.keys[i].iteration = agreed.decision.units[i].iteration = number++;
  }
  return agreed;
}

bool PlanMode::is_about(const Agreed& agreed, const Operation& operation) const {
  if (agreed.keys.size() != 1) return false;
  const UnitKey& key = agreed.keys.front();
  return key.iteration == operation.request.iteration && key.name == operation.request.name &&
         *table_.text(agreed.decision.units.front().descriptor.id) == operation.descriptor;
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
