// The agreement of a process set on one rank: which operations run next, in which order and by
// which algorithm, and which of them end with an error.
//
// Pure: submissions, messages and the time go in. Decisions, verdicts and messages come out. Only
// for the holder of the baton.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <type_traits>

#include "agreement/agreement_host.h"
#include "agreement/complete_decision.h"
#include "agreement/control_tree.h"
#include "agreement/decision_log.h"
#include "agreement/decision_queue.h"
#include "agreement/descriptor_table.h"
#include "agreement/gate.h"
#include "agreement/messages.h"
#include "agreement/plan_mode.h"
#include "agreement/readiness.h"
#include "agreement/said_names.h"
#include "agreement/situation.h"
#include "agreement/undecided.h"
#include "base/log.h"
#include "base/set_world.h"
#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

// The messages that the agreement takes. A ResultAddressMessage is checked here, and belongs to the
// runner.
template <typename Body>
concept AgreementMessage =
    !std::is_same_v<Body, ResultAddressMessage> && requires(Gate & gate, const Body& body) {
  gate.complaint(SetRank(), body);
};

class Agreement {
 public:
  struct Rules {
    Readiness::Limits limits;
    DecisionLog::Rules log;
    uint64_t plan_repeats = 0;  // as in Recurrence
    bool checks_names = false;  // whether ranks compare variable names
  };

  // `now` is read in each call.
  Agreement(const SetWorld& world, const Rules& rules, AgreementHost& host, const Situation& now,
            Log log);

  // ---- submissions ----
  void submit(const OperationRef& operation) { plan_mode_.submit(operation); }
  // Takes the plan's next decision if it is about this operation alone, and nothing else waits.
  // Returns the decision, or null.
  const KeyedDecision* take_planned(Operation& operation) {
    return plan_mode_.take_planned(operation);
  }
  // The next operations are in flight, so the plan's limits begin again.
  void note_progress() { plan_mode_.note_progress(); }

  // ---- messages ----
  // The end of the sentence "it sent ..." about a wrong message of `sender`. "" for a valid one.
  template <typename Body>
  std::string complaint(SetRank sender, const Body& message) {
    return gate_.complaint(sender, message);
  }
  // Takes a message, unless complaint() is about it. Returns the complaint.
  template <AgreementMessage Body>
  std::string hear(SetRank sender, Body& message) {
    std::string what = gate_.complaint(sender, message);
    if (!what.empty()) return what;
    last_sender_ = sender;
    if constexpr (requires { plan_mode_.handle(sender, message); }) {
      plan_mode_.handle(sender, message);
    } else {
      handle(sender, message);
    }
    return what;
  }

  // ---- the loop ----
  // Whether a turn could move anything beyond the batches that run already.
  bool has_work() const {
    return readiness_.has_news() || log_.waiting() || !undecided_.empty() ||
           !queue_.incomplete().empty() || !complete().empty();
  }
  // Looks for late and stalled operations. Call it every kCheckInterval.
  void check();
  bool pass_readiness();  // sends readiness up, and verdicts down
  // Root, outside plans: takes what has become ready. Returns whether decide() has something to do.
  bool collect_ready();
  // Root: makes one decision, unless an earlier one has not begun. `is_idle`: none is under way.
  bool decide(const Visibility& visibility, bool is_idle = true);
  // Root, after decisions: begins a plan if their order has repeated.
  void start_plan() { plan_mode_.start(); }
  // Takes the plan's next decision, if its operations are here.
  bool follow_plan() { return plan_mode_.follow(); }
  // Leaves a plan without progress. `has_room`: the next decision could begin.
  void check_plan(bool has_room) { plan_mode_.check(has_room); }
  bool gather();    // finds the operations of decisions
  bool end_join();  // root: ends the join once all ranks have joined
  // Decisions in their order, with their operations. The runner removes them when they begin.
  std::deque<CompleteDecision>& complete() { return queue_.complete(); }
  const std::deque<CompleteDecision>& complete() const { return queue_.complete(); }
  // `is_busy`: operations are in flight.
  Nanoseconds next_deadline(bool is_busy) const {
    return std::min(readiness_.next_deadline(), plan_mode_.next_deadline(is_busy));
  }

  // ---- operations that have run ----
  // Returns true if the operation ends with `status`. Otherwise it has to wait for other ranks,
  // or for another decision.
  bool settle(OperationRef& operation, Status& status) {
    return plan_mode_.settle(operation, status);
  }
  // An operation ends, for whatever reason.
  void ended(const Operation& operation, bool is_agreed);
  // Whether the result of an operation that has run is the one that the caller receives.
  bool is_final(const Operation& ended) const { return plan_mode_.is_final(ended); }
  // Whether an operation that succeeds now ends with success, at once and for good.
  bool ends_well(const Operation& operation) const {
    return now_.goes_on() && plan_mode_.ends_well(operation);
  }
  // Ends operations that no longer wait for other ranks.
  void end_caught_up() { plan_mode_.end_caught_up(); }

  // ---- the end ----
  // The number of decisions that this rank knows.
  uint64_t accepted() const { return log_.accepted(); }
  // This rank has all operations of the decisions before this one. It is less than accepted() after
  // a plan only, until the rank has caught up.
  uint64_t started() const {
    return queue_.incomplete().empty() ? log_.accepted()
                                       : queue_.incomplete().front().decision.sequence;
  }
  // Decisions that lack some operations, in their order.
  const std::deque<KeyedDecision>& incomplete() const { return queue_.incomplete(); }
  uint64_t departed_from() const { return departed_from_; }
  // A member has left. It takes no part in the decisions from `started` on.
  void depart_from(uint64_t started) { departed_from_ = std::min(departed_from_, started); }
  // Whether decisions may wait for a rank that has left. Either this rank has started them by a
  // plan, or other ranks have started them and this rank's caller can no longer submit.
  bool misses_departed() const {
    return !queue_.incomplete().empty() || accepted() > departed_from_;
  }
  void end_undecided(const Status& status);
  void abandon(const Status& status);  // ends all operations that do not run
  bool may_end() const { return complete().empty() && plan_mode_.held() == 0; }
  bool is_drained() const { return queue_.incomplete().empty() && may_end(); }
  // Whether all decisions before this one have begun.
  bool has_begun_all(uint64_t before) const { return queue_.has_begun_all(before); }
  bool has_undecided() const { return !undecided_.empty(); }

  // ---- state and metrics ----
  bool has_joined() const { return undecided_.has_joined(); }
  PlanTotals plan_totals() const { return plan_mode_.totals(); }
  std::string state() const;

 private:
  void obey(KeyedDecision keyed);
  void serve(Decision decision);

  void handle(SetRank sender, ReadyMessage& message);
  void handle(SetRank sender, InternMessage& message);
  void handle(SetRank sender, Decision& decision);
  void handle(SetRank sender, VerdictMessage& message);
  void handle(SetRank sender, AllJoinedMessage& message);
  void apply(const VerdictMessage& verdict);
  void apply(const AllJoinedMessage& message);

  const SetWorld& world_;
  AgreementHost& host_;
  const Situation& now_;
  Log output_;

  SetRank last_sender_ = kTreeRoot;  // it sent the last message that was taken
  ControlTree tree_;
  DescriptorTable table_;
  SaidNames names_;
  Readiness readiness_;
  DecisionLog log_;
  Undecided undecided_;
  DecisionQueue queue_;
  PlanMode plan_mode_;
  Gate gate_;
  uint64_t departed_from_ = UINT64_MAX;
};

}  // namespace rdmacoll
