// The ranks that take part in the same operations, with all that they agree on: who is ready for
// what, the log of decisions, the plan. The world is the set with number 0. An engine has one
// object for each set that its rank is in; they share its executor, where each has lanes of its
// own, so that no set ever waits for another.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agreement/catch_up.h"
#include "agreement/decision_log.h"
#include "agreement/descriptor_table.h"
#include "agreement/gate.h"
#include "agreement/messages.h"
#include "agreement/plan_mode.h"
#include "agreement/readiness.h"
#include "agreement/recurrence.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/world.h"
#include "collectives/choose.h"
#include "execution/executor.h"
#include "execution/planner.h"
#include "memory/pool.h"
#include "memory/shared_results.h"
#include "operation/operation.h"
#include "transport/transport.h"

namespace rdmacoll {

// Late and stalled operations, and plans that do not go on, are looked for this often.
inline constexpr Nanoseconds kCheckInterval = kMillisecond;
// So long an operation waits for those that the plan has before it, when there is room for them.
inline constexpr Nanoseconds kPlanPatience = 100 * kMillisecond;
// Why a rank that left by its own will has failed another one.
inline constexpr const char* kLeftTooEarly = "left before this rank had its data";

// How things stand with the job, as its engine sees it.
struct Situation {
  Nanoseconds turned_at = 0;  // when the engine's turn began
  Status failure;             // that has ended the world; ok() while there is none
  Status departed;            // the first rank that left: no more collectives
  bool leaving = false;       // this rank is about to leave
  std::set<int> lost;         // ranks without a connection any more

  bool goes_on() const { return failure.ok(); }
};

// What a set asks of the engine that it belongs to. Ranks are those of the job.
class SetHost {
 public:
  virtual ~SetHost() = default;
  virtual void post(int rank, uint32_t set, const Message& message) = 0;
  virtual void fail(int rank, Status status) = 0;  // the world ends
  virtual void fail_myself(const Status& status) = 0;
  virtual void broken_protocol(int rank, const std::string& what) = 0;
  // An operation that no caller has submitted.
  virtual void begin(const OperationRef& operation) = 0;
  // All ranks have joined: unnamed operations go on with this number.
  virtual void number_from(uint32_t set, int64_t number) = 0;
  // The caller gets it back.
  virtual void end(const OperationRef& operation, const Status& status) = 0;
};

struct SetTotals {
  uint64_t plans = 0;       // that this rank has followed
  uint64_t plans_left = 0;  // and left
  uint64_t caught_up = 0;   // decisions that some ranks had to catch up with then
  uint64_t anew = 0;        // of those: that were taken anew, with other rows
  uint64_t programs = 0;    // that were made
  uint64_t shared = 0;      // sums whose results the ranks of the node share

  SetTotals& operator+=(const SetTotals& other) {
    plans += other.plans;
    plans_left += other.plans_left;
    caught_up += other.caught_up;
    anew += other.anew;
    programs += other.programs;
    shared += other.shared;
    return *this;
  }
};

struct SetParts {
  uint32_t number = 0;
  const World& job;
  World world;             // of the set's members, with this rank's number among them
  std::vector<int> ranks;  // of the members in the job, and of the servers behind them
  int servers = 0;
  Lanes lanes;  // in the executor
  uint64_t segment_bytes_max = 0;
  const Config& config;
  const Tuning& tuning;
  Transport& transport;
  MemoryPool& pool;
  SharedResults& results;
  Executor& executor;
  Log log;
};

// Called by the holder of the engine's baton, as the engine is. Ranks in these calls are those of
// the job; inside, and in messages of the set, they are those of the set.
class ProcessSet {
 public:
  ProcessSet(SetParts parts, SetHost& host, const Situation& now);

  uint32_t number() const { return number_; }
  const World& world() const { return world_; }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::vector<int>& neighbours() const { return neighbours_; }
  bool is_neighbour(int rank) const;
  bool is_connected() const;  // with all neighbours

  // ---- the loop ----
  void take(const OperationRef& operation);  // the caller has submitted it
  // Nothing moves without it: only what is under way already.
  bool has_to_agree() const;
  bool agree();
  // It has ended in the executor.
  void report(OperationRef operation);
  Nanoseconds next_deadline() const;

  // ---- what members say ----
  // Behind "it sent ", or "" for a message that fits: the gate, which comes before handle().
  template <typename Body>
  std::string complaint(int peer, const Body& message) {
    return gate_.complaint(rank_of(peer), message);
  }
  void handle(int peer, ReadyMessage& message);
  void handle(int peer, InternMessage& message);
  void handle(int peer, Decision& decision);
  void handle(int peer, VerdictMessage& message);
  void handle(int peer, PlanMessage& message);
  void handle(int peer, FreezeMessage& message);
  void handle(int peer, FrozenMessage& message);
  void handle(int peer, ResumeMessage& message);
  void handle(int peer, CaughtUpMessage& message);
  void handle(int peer, AnewMessage& message);
  void handle(int peer, AllJoinedMessage& message);
  void handle(int peer, PlaceMessage& message);
  void connected() { planner_.connected(); }

  // ---- the end ----
  uint64_t accepted() const { return decision_log_.accepted(); }
  // The decisions that this rank has taken part in.
  uint64_t started() const { return decision_log_.accepted() - agreed_.size(); }
  uint64_t departed_from() const { return departed_from_; }
  // A member has left, which takes no part in the decisions from this one on.
  void depart_from(uint64_t started) { departed_from_ = std::min(departed_from_, started); }
  // What this rank has started by the plan and a rank that has left had not: it cannot end. Nor can
  // what others have started and this rank's caller will not submit any more.
  bool is_deserted() const;
  void complete_undecided(const Status& status);
  void complete_caught_up();  // and ended
  void complete(const OperationRef& operation, const Status& status);
  void abandon(const Status& status);  // completes all that the executor does not have
  // What the executor has made of it is what its caller is to have.
  bool is_final(const Operation& ended) const;
  bool may_end() const { return decided_.empty() && held_.empty(); }
  bool is_drained() const;                    // nothing decided is left to do
  bool has_ended_all(uint64_t before) const;  // the decisions before this one
  bool has_undecided() const { return !undecided_.empty(); }

  // ---- telling ----
  const std::set<int>& asked() const { return planner_.asked(); }
  // Those that a caller waits for.
  std::size_t in_flight() const { return in_flight_ - stand_ins_in_flight_ - refusals_in_flight_; }
  SetTotals totals() const {
    return {(plan_.era() + 1) / 2u, plan_.era() / 2u, caught_up_, anew_,
            planner_.programs(),    shared_};
  }
  std::string state() const;

 private:
  using Operations = std::map<UnitKey, OperationRef>;
  struct Found {
    Operations* among = nullptr;
    Operations::iterator at;
  };

  // Names of variables that the others have not heard from this rank: process_set_names.cc.
  bool has_new_names(const Operation& operation) const;
  std::string names_to_say(Operation& operation);
  void note_names_heard(const Operation& operation, bool is_agreed);
  void forget_unheard_names();

  void await_decision(const OperationRef& operation);
  void announce(const OperationRef& operation);
  void announce(ReadyRecord record);
  bool pass_readiness();
  bool decide();
  bool is_one_node() const;
  void offer_ready();
  void obey(Agreed agreed);
  bool accept(const Decision& decision);
  bool gather_operations();
  bool take_operations(const Agreed& agreed);
  bool find_operation(const Agreed& agreed, std::size_t unit, Found& found);
  Agreed agreed_of(Decision decision) const;
  bool start_batches();
  bool start_batch(Decided& decided);
  void miss_peer_of(const Decided& decided);
  Status missing_peer(const Batch& batch) const;
  void apply(const VerdictMessage& verdict);

  // Plan mode: process_set_plan.cc.
  bool follow_plan();
  bool starts_at_once(const OperationRef& operation);
  void start_plan();
  void begin_plan(const PlanMessage& message);
  bool is_plan_stuck();
  void freeze(int except = -1);
  void report_frozen(uint64_t least, uint64_t furthest);
  void resume(const ResumeMessage& message);
  void unit_caught_up(const UnitKey& key);
  bool may_be_behind() const;
  void stand_in(const Agreed& agreed, std::size_t unit);
  void take_anew(uint64_t sequence);
  void say_again(OperationRef operation);
  bool judge_started(const UnitKey& key, const Status& verdict);

  // Ranks that never have data, and sum that of the others: process_set_servers.cc.
  bool is_server() const { return world_.rank >= world_.size(); }
  void post_servers(const Message& message);
  void tell_servers(const Decision& decision);
  void serve(Decision decision);

  // Where the results lie that a node shares: process_set_results.cc.
  bool shares_results(const Decided& decided) const;
  bool find_place(Decided& decided);
  void offer_place(Decided& decided, std::size_t block_bytes);
  void take_place(Decided& decided, const PeerPool& pool, uint64_t offset, std::size_t block_bytes);

  // Ranks without data left: process_set_join.cc.
  void announce_join();
  bool take_part_with_zeros(const Agreed& agreed, std::size_t unit);
  bool end_join();
  void apply(const AllJoinedMessage& message);
  void part();
  Operation::Result zeros_of(uint64_t bytes);
  void keep_zeros(Operation& stand_in);

  void post(int peer, const Message& message) { host_.post(peer, number_, message); }
  void post_down(const Message& message);
  bool pass_down(const Decision& decision);
  void post_neighbours(const Message& message, int except);
  bool is_root() const { return world_.rank == 0; }
  int root() const { return ranks_.front(); }
  // Decisions come from there.
  int above() const { return is_root() || is_server() ? root() : neighbours_.front(); }
  // In the set; -1: it is not in it.
  int rank_of(int peer) const;
  // Of the control tree.
  bool is_leaf() const { return children_.empty(); }

  const uint32_t number_;
  const World& job_;
  const World world_;  // of those who have data: a server's rank is beyond them
  const std::vector<int> ranks_;
  const std::vector<int> servers_;  // ranks of the job
  const bool is_one_node_;          // with the servers
  const bool checks_names_;
  const Lanes lanes_;
  SetHost& host_;
  const Situation& now_;
  Transport& transport_;
  MemoryPool& pool_;
  SharedResults& results_;
  Executor& executor_;
  Log log_;

  // In the control tree: parent first (but at the root), children; then the servers, which are
  // neighbours of all. Ranks of the job.
  std::vector<int> neighbours_;
  std::vector<int> children_;
  DescriptorTable table_;
  Readiness readiness_;
  DecisionLog decision_log_;
  Planner planner_;

  Operations undecided_;                 // wait for their decision
  std::deque<Agreed> agreed_;            // decisions whose operations are not all here
  std::deque<Decided> decided_;          // not started yet
  std::map<uint64_t, uint64_t> places_;  // that the first member has told, by sequence
  uint64_t departed_from_ = UINT64_MAX;
  Nanoseconds checked_at_ = 0;
  struct SaidNames {
    std::string digests;
    bool is_heard = false;  // an operation with them has ended well
  };
  // What this rank has said last, by the operation's name, or what describes it.
  std::map<std::string, SaidNames> said_names_;

  PlanMode plan_;
  Recurrence recurrence_;  // at the root
  CatchUp catch_up_;
  Gate gate_;
  Operations stand_ins_;  // wait for their decision's turn
  std::vector<Operation::Result> spare_zeros_;
  std::map<UnitKey, Status> judged_;  // of operations that run, and end with this
  std::set<UnitKey> unanswered_;      // of those: the root's answer to them is still to come
  std::vector<OperationRef> held_;    // ended, but not all ranks have caught up
  std::set<UnitKey> again_;           // run for nothing, and are to be decided anew once they end
  Nanoseconds plan_moved_at_ = 0;
  Nanoseconds plan_checked_at_ = 0;
  std::vector<Found> found_;  // kept for its capacity
  uint64_t caught_up_ = 0;
  uint64_t anew_ = 0;
  uint64_t shared_ = 0;
  std::size_t in_flight_ = 0;
  std::size_t stand_ins_in_flight_ = 0;  // of those
  std::size_t refusals_in_flight_ = 0;   // of those, too
  bool told_of_pool_ = false;
};

}  // namespace rdmacoll
