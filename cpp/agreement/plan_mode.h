// Plan mode of a set's agreement: ranks run a repeated order of decisions without messages, and
// leave it together.
//
// To leave the plan, all ranks stop taking decisions and report their progress. All ranks then run
// the decisions up to the furthest rank's, and the log continues there. Ranks that are behind catch
// up with decisions that others have started.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "agreement/agreement_host.h"
#include "agreement/catch_up.h"
#include "agreement/control_tree.h"
#include "agreement/decision_log.h"
#include "agreement/decision_queue.h"
#include "agreement/drift.h"
#include "agreement/keyed_decision.h"
#include "agreement/messages.h"
#include "agreement/plan.h"
#include "agreement/readiness.h"
#include "agreement/recurrence.h"
#include "agreement/said_names.h"
#include "agreement/situation.h"
#include "agreement/undecided.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/set_world.h"
#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

// The plans of a set, counted on one rank.
struct PlanTotals {
  uint64_t begun = 0, left = 0;
  uint64_t caught_up = 0;  // decisions of ended plans that some ranks had to catch up with
  uint64_t replayed = 0;   // decisions among these whose operations were decided again
};

class PlanMode {
 public:
  // The parts of the agreement that plans use.
  struct Parts {
    const SetWorld& world;
    AgreementHost& host;
    const Situation& now;
    ControlTree& tree;
    const DescriptorTable& table;
    SaidNames& names;
    Readiness& readiness;
    DecisionLog& log;
    Undecided& undecided;
    DecisionQueue& queue;
  };
  // `repeats`: as in Recurrence.
  PlanMode(const Parts& parts, const DecisionLog::Rules& rules, uint64_t repeats, Log output);

  const Plan& plan() const { return plan_; }
  const CatchUp& catch_up() const { return catch_up_; }
  bool is_in_log() const { return plan_.phase() == Plan::Phase::log; }
  PlanTotals totals() const {
    return {(plan_.era() + 1) / 2u, plan_.era() / 2u, caught_up_, replayed_};
  }

  // ---- along the plan ----
  // Announces a submitted operation, or leaves the plan if the operation is not in it.
  void submit(const OperationRef& operation);
  const KeyedDecision* take_planned(Operation& operation);  // as in Agreement
  bool follow();                                            // as Agreement::follow_plan()
  void check(bool has_room);                                // as Agreement::check_plan()
  void note_progress() { moved_at_ = parts_.now.turned_at; }
  Nanoseconds next_deadline(bool is_busy) const;

  // ---- root ----
  void note(const Decision& decision) {
    recurrence_.note(decision);
    after_plan_ += decision.units.size();
  }
  void forget_order() { recurrence_.forget(); }  // the next decisions may not repeat the last ones
  void start();                                  // begins a plan if the order has repeated
  // An operation is ready on all ranks. Returns false if the log decides it.
  bool take_ready(const ReadyUnit& unit);
  // Whether operations that all ranks have wait until ranks have caught up with others.
  bool holds_up_others() const;

  // ---- messages ----
  void handle(SetRank sender, PlanMessage& message);
  void handle(SetRank sender, FreezeMessage& message);
  void handle(SetRank sender, FrozenMessage& message);
  void handle(SetRank sender, ResumeMessage& message);
  void handle(SetRank sender, CaughtUpMessage& message);
  void handle(SetRank sender, ReplayMessage& message);
  // Takes a verdict. `is_answer`: it is for this rank. Returns true if it is for an operation that
  // has been decided here, which needs nothing more.
  bool judge(const UnitKey& key, const Status& verdict, bool is_answer);

  // ---- operations that have run ----
  bool settle(OperationRef& operation, Status& status);  // as in Agreement
  bool is_final(const Operation& ended) const;           // as in Agreement
  bool ends_well(const Operation& operation) const;      // as in Agreement
  void ended(const Operation& operation);
  void end_caught_up();  // ends held operations that no longer wait
  std::size_t held() const { return held_.size(); }
  void abandon(const Status& status);  // ends all held operations

 private:
  bool is_active() const { return plan_.phase() == Plan::Phase::plan; }
  bool is_unplanned(const Operation& operation) const {
    return !plan_.fits(operation) || parts_.names.has_new(operation);
  }
  void announce_join();
  void begin(const PlanMessage& message);
  std::vector<uint64_t> timed_bytes(const PlanMessage& message) const;
  void started(uint64_t sequence, const Operation& first);
  bool is_stuck(bool has_room) const;
  void freeze(SetRank except = {});
  uint64_t kept() const;
  void report(uint64_t least, uint64_t furthest, uint64_t kept);
  void resume(const ResumeMessage& message);

  // After the plan: plan_mode_end.cc.
  void expect_all(const ResumeMessage& message);
  void run_for_nothing(const KeyedDecision& keyed, bool is_started);
  void unit_caught_up(const UnitKey& key);
  void caught_up(uint64_t sequence);
  void replay(uint64_t sequence);
  bool may_be_behind() const;
  bool judge_started(const UnitKey& key, const Status& verdict);

  const Parts parts_;
  Log output_;
  Plan plan_;
  Recurrence recurrence_;   // used at the root
  const bool looks_again_;  // at the root
  const uint64_t timed_bytes_least_;
  Drift drift_;  // used if looks_again_
  CatchUp catch_up_;

  Nanoseconds moved_at_ = 0;  // when an operation last began or ended
  Nanoseconds checked_at_ = 0;

  // Verdicts that running operations end with, by the sequence of the decision. An operation of
  // the same name may still run for an earlier decision.
  std::map<std::pair<uint64_t, UnitKey>, Status> judged_;
  // judged operations for which the root's verdict is still to come
  std::set<UnitKey> unanswered_;
  std::vector<OperationRef> held_;  // have ended, but not all ranks have caught up
  std::set<UnitKey> to_replay_;     // run with a discarded result, and need another decision
  // Root: operations that the log has decided since the last plan, and that have not ended here.
  std::size_t after_plan_ = 0;
  uint64_t resumed_at_ = 0;  // the first decision of the log since then
  bool join_waits_ = false;  // this rank has to announce its join, if it has one
  uint64_t caught_up_ = 0;
  uint64_t replayed_ = 0;
};

}  // namespace rdmacoll
