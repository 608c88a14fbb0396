#include "agreement/decision_queue.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/text.h"
#include "operation/cut.h"
#include "operation/placeholder.h"

namespace rdmacoll {

Agreed DecisionQueue::agreed_of(Decision decision) const {
  Agreed agreed{std::move(decision), {}};
  for (const DecisionUnit& unit : agreed.decision.units) {
    const std::string* descriptor = parts_.table.resolve(unit.descriptor);
    const std::string_view name = descriptor == nullptr ? "" : descriptor_name(*descriptor);
    agreed.keys.push_back({std::string(name), unit.iteration});
  }
  if (!agreed.decision.rows.empty()) {
    agreed.rows = std::make_shared<const RowTable>(std::exchange(agreed.decision.rows, RowTable{}));
  }
  return agreed;
}

void DecisionQueue::accept(const Decision& decision) {
  const bool is_next = parts_.log.accept(decision);
  RC_ASSERT(is_next, cat("decision ", decision.sequence));
  if (parts_.tree.is_root()) parts_.tree.tell_servers(decision);
}

// A caller may wait for the operation of a later decision before it submits that of an earlier one.
bool DecisionQueue::gather() {
  bool moved = false;
  for (auto next = incomplete_.begin(); next != incomplete_.end() && parts_.now.goes_on();) {
    if (take_operations(*next)) {
      next = incomplete_.erase(next);
      moved = true;
    } else {
      ++next;
    }
  }
  return moved;
}

bool DecisionQueue::take_operations(const Agreed& agreed) {
  const Decision& decision = agreed.decision;
  found_.clear();
  for (std::size_t i = 0; i < agreed.keys.size(); ++i) {
    found_.emplace_back();
    if (!find_operation(agreed, i, found_.back())) return false;
  }
  const auto later = std::find_if(decided_.begin(), decided_.end(), [&](const Decided& one) {
    return one.sequence > decision.sequence;
  });
  Decided& decided = *decided_.insert(later, Decided{decision.sequence,
                                                     decision.movement,
                                                     agreed.rows,
                                                     decision.most_rows,
                                                     agreed.is_planned,
                                                     {},
                                                     decision.is_timed});
  for (const Found& found : found_) {
    OperationRef& operation = decided.operations.emplace_back(std::move(found.at->second));
    operation->state.sequence = decision.sequence;
    found.among->erase(found.at);
  }
  return true;
}

// Returns false if the operation is absent, or differs from the other ranks' operation of that
// name.
bool DecisionQueue::find_operation(const Agreed& agreed, std::size_t unit, Found& found) {
  const UnitKey& key = agreed.keys[unit];
  found = {&placeholders_, placeholders_.find(key)};
  if (found.at != placeholders_.end()) return true;
  Operations& undecided = parts_.undecided.all();
  found = {&undecided, undecided.find(key)};
  if (found.at == undecided.end()) {
    if (!take_part_with_zeros(agreed, unit)) return false;
    found = {&placeholders_, placeholders_.find(key)};
    return true;
  }
  const std::string* descriptor = parts_.table.resolve(agreed.decision.units[unit].descriptor);
  const Operation& operation = *found.at->second;
  return descriptor != nullptr && *descriptor == operation.descriptor &&
         has_own_rows(agreed, operation, parts_.world) && !parts_.names.has_new(operation);
}

// Creates a placeholder for a decision that comes after this rank has joined.
bool DecisionQueue::take_part_with_zeros(const Agreed& agreed, std::size_t unit) {
  if (!parts_.undecided.has_joined()) return false;
  add_placeholder(agreed, unit);
  return placeholders_.contains(agreed.keys[unit]);
}

void DecisionQueue::add_placeholder(const Agreed& agreed, std::size_t unit) {
  const SetWorld& world = parts_.world;
  const UnitKey& key = agreed.keys[unit];
  Descriptor descriptor;
  const std::string* described = parts_.table.resolve(agreed.decision.units[unit].descriptor);
  const bool is_whole = described != nullptr && decode_descriptor(*described, descriptor) &&
                        is_complete(descriptor, agreed.own_rows, world.rank(), world.size());
  if (!is_whole) {
    return parts_.host.broken_protocol(parts_.tree.above(),
                                       "a decision without the rows of a rank that it is about");
  }
  Request request = request_like(descriptor, agreed.own_rows, world.rank(), world.size());
  request.iteration = key.iteration;
  auto operation = std::make_shared<Operation>(std::move(request));
  operation->is_placeholder = true;
  if (parts_.host.begin(operation)) placeholders_[key] = std::move(operation);
}

const Agreed* DecisionQueue::find_incomplete(uint64_t sequence) const {
  const auto found =
      std::find_if(incomplete_.begin(), incomplete_.end(),
                   [&](const Agreed& agreed) { return agreed.decision.sequence == sequence; });
  return found == incomplete_.end() ? nullptr : &*found;
}

bool DecisionQueue::has_begun_all(uint64_t before) const {
  const auto waits = [&](const auto& decision) { return decision.sequence < before; };
  return parts_.log.accepted() >= before && std::none_of(decided_.begin(), decided_.end(), waits) &&
         std::none_of(incomplete_.begin(), incomplete_.end(),
                      [&](const Agreed& agreed) { return waits(agreed.decision); });
}

void DecisionQueue::abandon(const Status& status) {
  AgreementHost& host = parts_.host;
  for (const auto& [key, operation] : std::exchange(placeholders_, {})) host.end(operation, status);
  for (const Decided& decided : std::exchange(decided_, {})) {
    for (const OperationRef& operation : decided.operations) host.end(operation, status);
  }
}

}  // namespace rdmacoll
