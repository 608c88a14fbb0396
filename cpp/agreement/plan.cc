#include "agreement/plan.h"

#include <algorithm>
#include <set>

namespace rdmacoll {
namespace {

// The key of a numbered unit has no number yet.
UnitKey key_of(const PlannedUnit& unit, const std::string& descriptor) {
  if (unit.numbered) return {};
  return {std::string(descriptor_name(descriptor)), unit.iteration};
}

}  // namespace

bool Plan::begin(const PlanMessage& message) {
  if (phase_ != Phase::log || message.era != era_ + 1) return false;
  named_.clear();
  numbered_.clear();
  numbered_before_.clear();
  period_.clear();
  period_.reserve(message.decisions.size());  // Meaning::keyed points into it
  for (const PlannedDecision& decision : message.decisions) {
    numbered_before_.push_back(numbered_.size());
    KeyedDecision& keyed = period_.emplace_back();
    keyed.decision = {.movement = decision.movement, .most_rows = decision.most_rows};
    keyed.is_planned = true;
    if (!take_rows(decision, keyed)) return false;
    for (const PlannedUnit& unit : decision.units) {
      const std::string* descriptor = table_.text(unit.descriptor);
      if (descriptor == nullptr) return false;
      const UnitKey key = key_of(unit, *descriptor);
      keyed.keys.push_back(key);
      keyed.decision.units.push_back({{unit.descriptor, {}}, key.iteration});
      if (unit.numbered) {
        numbered_.push_back({unit.descriptor, &keyed});
      } else {
        named_[key] = {unit.descriptor, &keyed};
      }
    }
  }
  phase_ = Phase::plan;
  era_ = message.era;
  plan_ = message;
  at_ = {.sequence = message.start};
  reports_ = 0;
  return true;
}

// Takes over the row counts of all ranks, and selects the ones of this rank.
bool Plan::take_rows(const PlannedDecision& decision, KeyedDecision& keyed) const {
  for (const PlannedUnit& unit : decision.units) {
    const std::string* bytes = table_.text(unit.descriptor);
    Descriptor descriptor;
    if (bytes == nullptr || !decode_descriptor(*bytes, descriptor) ||
        !incomplete_rank(descriptor, decision.rows, world_.size()).is_none()) {
      return false;
    }
  }
  if (decision.rows.empty()) return true;
  if (decision.rows.size() != static_cast<std::size_t>(world_.size())) return false;
  keyed.own_rows = decision.rows[world_.rank().index()];
  RowTable rows = decision.rows;
  if (decision.most_rows > 0) {  // an alltoall: only the numbers for this rank, as in a decision
    if (!columns_of(decision.rows, world_.ranks(), {world_.rank()}, rows)) return false;
  }
  keyed.rows = std::make_shared<const RowTable>(std::move(rows));
  return true;
}

bool Plan::fits(const Operation& operation) const {
  const Request& request = operation.request;
  if (!request.name.empty()) {
    const auto found = named_.find({request.name, request.iteration});
    return found != named_.end() && fits(found->second, operation);
  }
  const int64_t ahead = request.iteration - plan_.first_number;
  if (numbered_.empty() || ahead < 0) return false;
  return fits(numbered_[static_cast<std::size_t>(ahead) % numbered_.size()], operation);
}

bool Plan::fits(const Meaning& meaning, const Operation& operation) const {
  return *table_.text(meaning.descriptor) == operation.descriptor &&
         has_own_rows(*meaning.keyed, operation, world_);
}

const KeyedDecision& Plan::decision(uint64_t sequence) {
  go_to(sequence);
  const PlannedDecision& planned = plan_.decisions[at_.place];
  int64_t number = plan_.first_number +
                   static_cast<int64_t>(at_.times * numbered_.size() + numbered_before_[at_.place]);
  KeyedDecision& keyed = period_[at_.place];
  keyed.decision.sequence = sequence;
  for (std::size_t i = 0; i < planned.units.size(); ++i) {
    if (!planned.units[i].numbered) continue;
    keyed.keys[i].iteration = keyed.decision.units[i].iteration = number++;
  }
  return keyed;
}

// Usually the next sequence.
void Plan::go_to(uint64_t sequence) {
  if (sequence == at_.sequence + 1) {
    if (++at_.place == period()) {
      at_.place = 0;
      ++at_.times;
    }
  } else {
    at_.place = static_cast<std::size_t>((sequence - plan_.start) % period());
    at_.times = (sequence - plan_.start) / period();
  }
  at_.sequence = sequence;
}

bool Plan::is_about(const KeyedDecision& keyed, Operation& operation) const {
  if (keyed.keys.size() != 1) return false;
  const UnitKey& key = keyed.keys.front();
  if (key.iteration != operation.request.iteration) return false;
  if (operation.caches.planned_era == era_ && operation.caches.planned_as == &keyed) return true;
  const bool is_about =
      key.name == operation.request.name &&
      *table_.text(keyed.decision.units.front().descriptor.id) == operation.descriptor &&
      has_own_rows(keyed, operation, world_);
  if (!is_about) return false;
  operation.caches.planned_era = era_;
  operation.caches.planned_as = &keyed;
  return true;
}

bool Plan::report(uint64_t least, uint64_t furthest, uint64_t kept) {
  least_ = reports_ == 0 ? least : std::min(least_, least);
  furthest_ = reports_ == 0 ? furthest : std::max(furthest_, furthest);
  kept_ = reports_ == 0 ? kept : std::max(kept_, kept);
  return ++reports_ == children_ + 1;
}

bool Plan::repeats_within(uint64_t least, uint64_t furthest) const {
  std::set<UnitKey> named;
  for (uint64_t sequence = least; sequence < furthest; ++sequence) {
    const auto place = static_cast<std::size_t>((sequence - plan_.start) % period());
    for (std::size_t i = 0; i < period_[place].keys.size(); ++i) {
      const bool is_counted = plan_.decisions[place].units[i].numbered;
      if (!is_counted && !named.insert(period_[place].keys[i]).second) return true;
    }
  }
  return false;
}

void Plan::resume(uint32_t era) {
  phase_ = Phase::log;
  era_ = era;
}

}  // namespace rdmacoll
