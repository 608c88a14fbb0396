// The decisions that this rank takes part in, and the operations that they name.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "agreement/agreement_host.h"
#include "agreement/complete_decision.h"
#include "agreement/control_tree.h"
#include "agreement/decision_log.h"
#include "agreement/descriptor_table.h"
#include "agreement/keyed_decision.h"
#include "agreement/said_names.h"
#include "agreement/situation.h"
#include "agreement/undecided.h"
#include "base/set_world.h"
#include "operation/operation.h"

namespace rdmacoll {

class DecisionQueue {
 public:
  struct Parts {
    const SetWorld& world;
    AgreementHost& host;
    const Situation& now;
    ControlTree& tree;
    const DescriptorTable& table;
    const SaidNames& names;
    DecisionLog& log;
    Undecided& undecided;
  };
  explicit DecisionQueue(const Parts& parts) : parts_(parts) {}

  KeyedDecision with_keys(Decision decision) const;  // for a decision of the log
  // This rank takes part in the decision, which is the next one.
  void accept(const Decision& decision);
  void add(KeyedDecision keyed) { incomplete_.push_back(std::move(keyed)); }
  // Moves complete decisions to complete(). Returns whether there was any.
  bool gather();
  // Takes all operations of the decision into complete(), or returns false and takes none.
  bool take_operations(const KeyedDecision& keyed);
  // This rank takes part in an operation that its caller has not submitted.
  void add_placeholder(const KeyedDecision& keyed, std::size_t unit);

  // Decisions that lack some operations, in their order. Later ones may have begun.
  const std::deque<KeyedDecision>& incomplete() const { return incomplete_; }
  // The decision of this sequence that lacks some operations, or null.
  const KeyedDecision* find_incomplete(uint64_t sequence) const;
  // Complete decisions that have not begun, in their order.
  std::deque<CompleteDecision>& complete() { return complete_; }
  const std::deque<CompleteDecision>& complete() const { return complete_; }
  bool is_empty() const {
    return incomplete_.empty() && complete_.empty() && placeholders_.empty();
  }
  bool has_begun_all(uint64_t before) const;  // all decisions before this one
  void abandon(const Status& status);         // ends the operations of all decisions

 private:
  struct Found {
    Operations* among = nullptr;
    Operations::iterator at;
  };
  bool find_operation(const KeyedDecision& keyed, std::size_t unit, Found& found);
  bool take_part_with_zeros(const KeyedDecision& keyed, std::size_t unit);

  const Parts parts_;
  std::deque<KeyedDecision> incomplete_;
  std::deque<CompleteDecision> complete_;
  Operations placeholders_;   // their decision has not begun
  std::vector<Found> found_;  // a member to reuse its memory
};

}  // namespace rdmacoll
