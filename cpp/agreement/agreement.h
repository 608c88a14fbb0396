// The agreement of a process set on one rank: which operations run next, in which order and by
// which algorithm, and which of them end with an error.
//
// Pure: submissions, messages and the time go in. Decisions, verdicts and messages come out.
// Ranks are ranks of the set. Only for the holder of the baton.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "agreement/agreement_host.h"
#include "agreement/catch_up.h"
#include "agreement/control_tree.h"
#include "agreement/decided.h"
#include "agreement/decision_log.h"
#include "agreement/descriptor_table.h"
#include "agreement/gate.h"
#include "agreement/messages.h"
#include "agreement/plan_mode.h"
#include "agreement/readiness.h"
#include "agreement/recurrence.h"
#include "agreement/said_names.h"
#include "agreement/situation.h"
#include "base/log.h"
#include "base/status.h"
#include "base/world.h"
#include "operation/operation.h"

namespace rdmacoll {

// How often late and stalled operations, and plans without progress, are checked.
inline constexpr Nanoseconds kCheckInterval = kMillisecond;

// The messages that the agreement takes. A PlaceMessage is checked here, and belongs to the runner.
template <typename Body>
concept AgreementMessage =
    !std::is_same_v<Body, PlaceMessage> && requires(Gate & gate, const Body& body) {
  gate.complaint(0, body);
};

class Agreement {
 public:
  struct Rules {
    Readiness::Limits limits;
    DecisionLog::Rules log;
    uint64_t plan_repeats = 0;  // as in Recurrence
    bool checks_names = false;  // whether ranks compare variable names
  };

  // `world`: the ranks with data. A server's rank is beyond them. `now` is read in each call.
  Agreement(const World& world, const Rules& rules, AgreementHost& host, const Situation& now,
            Log log);

  // ---- submissions ----
  void submit(const OperationRef& operation);
  // Takes the plan's next decision if it is about this operation alone, and nothing else waits.
  // Returns the decision, or null.
  const Agreed* take_planned(Operation& operation);
  // The next operations are in flight, so the plan's limits begin anew.
  void note_progress() { moved_at_ = now_.turned_at; }

  // ---- messages ----
  // The end of the sentence "it sent ..." about a wrong message of `sender`. "" for a valid one.
  template <typename Body>
  std::string complaint(int sender, const Body& message) {
    return gate_.complaint(sender, message);
  }
  // Takes a message, unless complaint() is about it. Returns the complaint.
  template <AgreementMessage Body>
  std::string hear(int sender, Body& message) {
    std::string what = gate_.complaint(sender, message);
    if (what.empty()) handle(sender, message);
    return what;
  }

  // ---- the loop ----
  // Whether a turn could move anything beyond the batches that run already.
  bool has_work() const {
    return readiness_.has_news() || log_.waiting() || !undecided_.empty() || !agreed_.empty() ||
           !decided_.empty();
  }
  // Looks for late and stalled operations. Call it every kCheckInterval.
  void check();
  bool pass_readiness();  // sends readiness up, and verdicts down
  // Root, outside plans: takes what has become ready. Returns whether decide() has something to do.
  bool collect_ready();
  // Root: makes one decision, unless an earlier one has not begun. `one_node`: all ranks see each
  // other's memory.
  bool decide(bool one_node);
  void start_plan();   // root, after decisions: begins a plan if their order has repeated
  bool follow_plan();  // takes the plan's next decision, if its operations are here
  // Leaves a plan without progress. `has_room`: the next decision could begin.
  void check_plan(bool has_room);
  bool gather();    // finds the operations of decisions
  bool end_join();  // root: ends the join once all ranks have joined
  // Decisions in their order, with their operations. The runner removes them when they begin.
  std::deque<Decided>& decided() { return decided_; }
  const std::deque<Decided>& decided() const { return decided_; }
  // `is_busy`: operations are in flight.
  Nanoseconds next_deadline(bool is_busy) const;

  // ---- operations that have run ----
  // Returns true if the operation ends with `status`. Otherwise it has to wait for other ranks,
  // or for another decision.
  bool settle(OperationRef& operation, Status& status);
  // An operation ends, for whatever reason.
  void ended(const Operation& operation, bool is_agreed);
  // Whether the result of an operation that has run is the one that the caller receives.
  bool is_final(const Operation& ended) const;
  void end_caught_up();  // ends held operations that no longer wait

  // ---- the end ----
  uint64_t accepted() const { return log_.accepted(); }
  // The number of decisions that this rank has taken part in.
  uint64_t started() const { return log_.accepted() - agreed_.size(); }
  uint64_t departed_from() const { return departed_from_; }
  // A member has left. It takes no part in the decisions from `started` on.
  void depart_from(uint64_t started) { departed_from_ = std::min(departed_from_, started); }
  // Whether decisions may wait for a rank that has left. Either this rank has started them by a
  // plan, or other ranks have started them and this rank's caller can no longer submit.
  bool misses_departed() const { return !agreed_.empty() || accepted() > departed_from_; }
  void end_undecided(const Status& status);
  void abandon(const Status& status);  // ends all operations that do not run
  bool may_end() const { return decided_.empty() && held_.empty(); }
  bool is_drained() const { return agreed_.empty() && may_end(); }
  bool has_begun_all(uint64_t before) const;  // all decisions before this one
  bool has_undecided() const { return !undecided_.empty(); }

  // ---- state and metrics ----
  bool has_joined() const { return undecided_.contains(join_key()); }
  uint64_t plans() const { return (plan_.era() + 1) / 2u; }
  uint64_t plans_left() const { return plan_.era() / 2u; }
  uint64_t caught_up() const { return caught_up_; }
  uint64_t anew() const { return anew_; }
  std::string state() const;

 private:
  using Operations = std::map<UnitKey, OperationRef>;
  struct Found {
    Operations* among = nullptr;
    Operations::iterator at;
  };

  static const UnitKey& join_key();  // the key of a join in undecided_; no operation has it

  void announce(const OperationRef& operation);
  void announce(ReadyRecord record);
  void announce_join();
  void offer_ready();
  Agreed agreed_of(Decision decision) const;
  void obey(Agreed agreed);
  void serve(Decision decision);
  bool accept(const Decision& decision);
  bool take_operations(const Agreed& agreed);
  bool find_operation(const Agreed& agreed, std::size_t unit, Found& found);
  bool take_part_with_zeros(const Agreed& agreed, std::size_t unit);
  void add_placeholder(const Agreed& agreed, std::size_t unit);

  void handle(int sender, ReadyMessage& message);
  void handle(int sender, InternMessage& message);
  void handle(int sender, Decision& decision);
  void handle(int sender, VerdictMessage& message);
  void handle(int sender, PlanMessage& message);
  void handle(int sender, FreezeMessage& message);
  void handle(int sender, FrozenMessage& message);
  void handle(int sender, ResumeMessage& message);
  void handle(int sender, CaughtUpMessage& message);
  void handle(int sender, AnewMessage& message);
  void handle(int sender, AllJoinedMessage& message);
  void apply(const VerdictMessage& verdict);
  void apply(const AllJoinedMessage& message);

  // Plans: agreement_plan.cc.
  bool is_in_plan() const { return plan_.phase() == PlanMode::Phase::plan; }
  bool is_unplanned(const Operation& operation) const {
    return !plan_.fits(operation) || names_.has_new(operation);
  }
  void begin_plan(const PlanMessage& message);
  bool is_plan_stuck(bool has_room) const;
  void freeze(int except = -1);
  void report_frozen(uint64_t least, uint64_t furthest);
  void resume(const ResumeMessage& message);
  void unit_caught_up(const UnitKey& key);
  bool may_be_behind() const;
  void take_anew(uint64_t sequence);
  bool judge_started(const UnitKey& key, const Status& verdict);

  const World& world_;
  AgreementHost& host_;
  const Situation& now_;
  Log output_;

  ControlTree tree_;
  DescriptorTable table_;
  Readiness readiness_;
  DecisionLog log_;
  PlanMode plan_;
  Recurrence recurrence_;  // used at the root
  CatchUp catch_up_;
  SaidNames names_;
  Gate gate_;

  Operations undecided_;         // operations without a decision
  std::deque<Agreed> agreed_;    // decisions that lack some operations
  std::deque<Decided> decided_;  // complete decisions that have not begun
  Operations placeholders_;      // placeholders whose decision has not begun
  std::vector<Found> found_;     // a member to reuse its memory
  uint64_t departed_from_ = UINT64_MAX;

  // After a plan.
  // Verdicts that running operations end with, by the sequence of the decision. An operation of
  // the same name may still run for an earlier decision.
  std::map<std::pair<uint64_t, UnitKey>, Status> judged_;
  // judged operations for which the root's verdict is still to come
  std::set<UnitKey> unanswered_;
  std::vector<OperationRef> held_;  // have ended, but not all ranks have caught up
  std::set<UnitKey> again_;         // run with a discarded result, and need another decision
  Nanoseconds moved_at_ = 0;        // when an operation last began or ended
  Nanoseconds plan_checked_at_ = 0;
  uint64_t caught_up_ = 0;  // decisions of ended plans that some ranks had to catch up with
  uint64_t anew_ = 0;       // decisions among these that were made again with other rows
};

}  // namespace rdmacoll
