#include "agreement/decision_queue.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/text.h"
#include "operation/cut.h"
#include "operation/placeholder.h"

namespace rdmacoll {

KeyedDecision DecisionQueue::with_keys(Decision decision) const {
  KeyedDecision keyed{std::move(decision), {}};
  for (const DecisionUnit& unit : keyed.decision.units) {
    const std::string* descriptor = parts_.table.resolve(unit.descriptor);
    const std::string_view name = descriptor == nullptr ? "" : descriptor_name(*descriptor);
    keyed.keys.push_back({std::string(name), unit.iteration});
  }
  if (!keyed.decision.rows.empty()) {
    keyed.rows = std::make_shared<const RowTable>(std::exchange(keyed.decision.rows, RowTable{}));
  }
  return keyed;
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

bool DecisionQueue::take_operations(const KeyedDecision& keyed) {
  const uint64_t sequence = keyed.decision.sequence;
  found_.clear();
  for (std::size_t i = 0; i < keyed.keys.size(); ++i) {
    found_.emplace_back();
    if (!find_operation(keyed, i, found_.back())) return false;
  }
  const auto later =
      std::find_if(complete_.begin(), complete_.end(),
                   [&](const CompleteDecision& one) { return one.sequence > sequence; });
  std::vector<OperationRef> operations;
  for (const Found& found : found_) {
    OperationRef& operation = operations.emplace_back(std::move(found.at->second));
    operation->state.sequence = sequence;
    found.among->erase(found.at);
  }
  complete_.insert(later, keyed.with(std::move(operations)));
  return true;
}

// Returns false if the operation is absent, or differs from the other ranks' operation of that
// name.
bool DecisionQueue::find_operation(const KeyedDecision& keyed, std::size_t unit, Found& found) {
  const UnitKey& key = keyed.keys[unit];
  found = {&placeholders_, placeholders_.find(key)};
  if (found.at != placeholders_.end()) return true;
  Operations& undecided = parts_.undecided.all();
  found = {&undecided, undecided.find(key)};
  if (found.at == undecided.end()) {
    if (!take_part_with_zeros(keyed, unit)) return false;
    found = {&placeholders_, placeholders_.find(key)};
    return true;
  }
  const std::string* descriptor = parts_.table.resolve(keyed.decision.units[unit].descriptor);
  const Operation& operation = *found.at->second;
  return descriptor != nullptr && *descriptor == operation.descriptor &&
         has_own_rows(keyed, operation, parts_.world) && !parts_.names.has_new(operation);
}

// Creates a placeholder for a decision that comes after this rank has joined.
bool DecisionQueue::take_part_with_zeros(const KeyedDecision& keyed, std::size_t unit) {
  if (!parts_.undecided.has_joined()) return false;
  add_placeholder(keyed, unit);
  return placeholders_.contains(keyed.keys[unit]);
}

void DecisionQueue::add_placeholder(const KeyedDecision& keyed, std::size_t unit) {
  const SetWorld& world = parts_.world;
  const UnitKey& key = keyed.keys[unit];
  Descriptor descriptor;
  const std::string* described = parts_.table.resolve(keyed.decision.units[unit].descriptor);
  const bool is_whole = described != nullptr && decode_descriptor(*described, descriptor) &&
                        is_complete(descriptor, keyed.own_rows, world.rank(), world.size());
  if (!is_whole) {
    return parts_.host.broken_protocol(parts_.tree.above(),
                                       "a decision without the rows of a rank that it is about");
  }
  Request request = request_like(descriptor, keyed.own_rows, world.rank(), world.size());
  request.iteration = key.iteration;
  auto operation = std::make_shared<Operation>(std::move(request));
  operation->is_placeholder = true;
  if (parts_.host.begin(operation)) placeholders_[key] = std::move(operation);
}

const KeyedDecision* DecisionQueue::find_incomplete(uint64_t sequence) const {
  const auto found =
      std::find_if(incomplete_.begin(), incomplete_.end(),
                   [&](const KeyedDecision& keyed) { return keyed.decision.sequence == sequence; });
  return found == incomplete_.end() ? nullptr : &*found;
}

bool DecisionQueue::has_begun_all(uint64_t before) const {
  const auto waits = [&](const auto& decision) { return decision.sequence < before; };
  return parts_.log.accepted() >= before &&
         std::none_of(complete_.begin(), complete_.end(), waits) &&
         std::none_of(incomplete_.begin(), incomplete_.end(),
                      [&](const KeyedDecision& keyed) { return waits(keyed.decision); });
}

void DecisionQueue::abandon(const Status& status) {
  AgreementHost& host = parts_.host;
  for (const auto& [key, operation] : std::exchange(placeholders_, {})) host.end(operation, status);
  for (const CompleteDecision& decision : std::exchange(complete_, {})) {
    for (const OperationRef& operation : decision.operations) host.end(operation, status);
  }
}

}  // namespace rdmacoll
