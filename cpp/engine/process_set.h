// A process set: ranks that take part in the same operations, and their agreement (readiness, log
// of decisions, plan). The world is set 0. An engine has one object for each set that contains its
// rank. The sets share the executor. Each has its own lanes there, so no set waits for another.
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

// How often late and stalled operations, and plans without progress, are checked.
inline constexpr Nanoseconds kCheckInterval = kMillisecond;
// How long an operation waits for the operations that the plan has before it, although there is
// room for them.
inline constexpr Nanoseconds kPlanPatience = 100 * kMillisecond;
// The cause of a failure if a rank left before others had its data.
inline constexpr const char* kLeftTooEarly = "left before this rank had its data";

// The state of the job, maintained by the engine.
struct Situation {
  Nanoseconds turned_at = 0;  // when the current turn began
  Status failure;             // the failure that ended the world, or ok()
  Status departed;            // the first rank that left; no more collectives run
  bool leaving = false;       // this rank is leaving
  std::set<int> lost;         // ranks whose connection is closed

  bool goes_on() const { return failure.ok(); }
};

// The functions of the engine that a set calls. Ranks are ranks of the job.
class SetHost {
 public:
  virtual ~SetHost() = default;
  virtual void post(int rank, uint32_t set, const Message& message) = 0;
  virtual void fail(int rank, Status status) = 0;  // ends the world
  virtual void fail_myself(const Status& status) = 0;
  virtual void broken_protocol(int rank, const std::string& what) = 0;
  // An operation begins that no caller has submitted.
  virtual void begin(const OperationRef& operation) = 0;
  // All ranks have joined. Unnamed operations continue with this number.
  virtual void number_from(uint32_t set, int64_t number) = 0;
  // Completes the operation.
  virtual void end(const OperationRef& operation, const Status& status) = 0;
};

struct SetTotals {
  uint64_t plans = 0;       // plans that this rank has followed
  uint64_t plans_left = 0;  // plans that this rank has left
  uint64_t caught_up = 0;   // decisions of ended plans that some ranks had to catch up with
  uint64_t anew = 0;        // decisions among these that were made again with other rows
  uint64_t programs = 0;    // programs that were built
  uint64_t shared = 0;      // sums with results that the ranks of the node share

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
  World world;             // the members of the set, with this rank's number among them
  std::vector<int> ranks;  // the job's ranks of the members, and of the servers after them
  int servers = 0;
  Lanes lanes;  // its lanes in the executor
  uint64_t segment_bytes_max = 0;
  const Config& config;
  const Tuning& tuning;
  Transport& transport;
  MemoryPool& pool;
  SharedResults& results;
  Executor& executor;
  Log log;
};

// Only for the holder of the baton, like Engine. Ranks in these functions are ranks of the job.
// Inside, and in messages, they are ranks of the set.
class ProcessSet {
 public:
  ProcessSet(SetParts parts, SetHost& host, const Situation& now);

  uint32_t number() const { return number_; }
  const World& world() const { return world_; }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::vector<int>& neighbours() const { return neighbours_; }
  bool is_neighbour(int rank) const;
  bool is_connected() const;  // to all neighbours

  // ---- the loop ----
  void take(const OperationRef& operation);  // the caller has submitted the operation
  // Whether agree() could move anything beyond the batches that run already.
  bool has_to_agree() const;
  bool agree();
  // The operation has ended in the executor.
  void report(OperationRef operation);
  Nanoseconds next_deadline() const;

  // ---- messages of members ----
  // Checks a message before handle(). Returns "" if it is valid. Otherwise returns the end of the
  // sentence "it sent ...".
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
  // The number of decisions that this rank has taken part in.
  uint64_t started() const { return decision_log_.accepted() - agreed_.size(); }
  uint64_t departed_from() const { return departed_from_; }
  // A member has left. It takes no part in the decisions from `started` on.
  void depart_from(uint64_t started) { departed_from_ = std::min(departed_from_, started); }
  // Whether decisions wait for a rank that has left. Either this rank has started them by a plan,
  // or other ranks have started them and this rank's caller can no longer submit.
  bool is_deserted() const;
  void complete_undecided(const Status& status);
  void complete_caught_up();  // completes held operations that have ended
  void complete(const OperationRef& operation, const Status& status);
  void abandon(const Status& status);  // completes all operations outside the executor
  // Whether the executor's result is the one that the caller receives.
  bool is_final(const Operation& ended) const;
  bool may_end() const { return decided_.empty() && held_.empty(); }
  bool is_drained() const;                    // no decision is left to run
  bool has_ended_all(uint64_t before) const;  // all decisions before this one have ended
  bool has_undecided() const { return !undecided_.empty(); }

  // ---- state and metrics ----
  const std::set<int>& asked() const { return planner_.asked(); }
  // Operations that a caller waits for.
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

  // Variable names that the other ranks have not received from this rank: process_set_names.cc.
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

  // Parameter servers, which sum the other ranks' data: process_set_servers.cc.
  bool is_server() const { return world_.rank >= world_.size(); }
  void post_servers(const Message& message);
  void tell_servers(const Decision& decision);
  void serve(Decision decision);

  // Results that the ranks of a node share: process_set_results.cc.
  bool shares_results(const Decided& decided) const;
  bool find_place(Decided& decided);
  void offer_place(Decided& decided, std::size_t block_bytes);
  void take_place(Decided& decided, const PeerPool& pool, uint64_t offset, std::size_t block_bytes);

  // Joins: process_set_join.cc.
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
  // The rank that sends decisions to this one.
  int above() const { return is_root() || is_server() ? root() : neighbours_.front(); }
  // The peer's rank in the set, or -1 if the set does not contain it.
  int rank_of(int peer) const;
  // A leaf of the control tree.
  bool is_leaf() const { return children_.empty(); }

  const uint32_t number_;
  const World& job_;
  const World world_;  // the ranks with data; a server's rank is beyond them
  const std::vector<int> ranks_;
  const std::vector<int> servers_;  // ranks of the job
  const bool is_one_node_;          // including the servers
  const bool checks_names_;
  const Lanes lanes_;
  SetHost& host_;
  const Situation& now_;
  Transport& transport_;
  MemoryPool& pool_;
  SharedResults& results_;
  Executor& executor_;
  Log log_;

  // Ranks of the job. First the parent in the control tree (not at the root), then the children,
  // then the servers. Servers are neighbours of all ranks.
  std::vector<int> neighbours_;
  std::vector<int> children_;
  DescriptorTable table_;
  Readiness readiness_;
  DecisionLog decision_log_;
  Planner planner_;

  Operations undecided_;         // operations without a decision
  std::deque<Agreed> agreed_;    // decisions that lack some operations
  std::deque<Decided> decided_;  // complete decisions that have not started
  // result offsets that the first member has sent, by sequence
  std::map<uint64_t, uint64_t> places_;
  uint64_t departed_from_ = UINT64_MAX;
  Nanoseconds checked_at_ = 0;
  struct SaidNames {
    std::string digests;
    bool is_heard = false;  // an operation with these names has succeeded
  };
  // The names that this rank has sent last, by the operation's name, or by its descriptor if
  // unnamed.
  std::map<std::string, SaidNames> said_names_;

  PlanMode plan_;
  Recurrence recurrence_;  // used at the root
  CatchUp catch_up_;
  Gate gate_;
  Operations stand_ins_;  // placeholders whose decision has not started
  std::vector<Operation::Result> spare_zeros_;
  std::map<UnitKey, Status> judged_;  // verdicts that running operations end with
  // judged operations for which the root's verdict is still to come
  std::set<UnitKey> unanswered_;
  std::vector<OperationRef> held_;  // have ended, but not all ranks have caught up
  std::set<UnitKey> again_;         // run with a discarded result, and need another decision
  Nanoseconds plan_moved_at_ = 0;
  Nanoseconds plan_checked_at_ = 0;
  std::vector<Found> found_;  // a member to reuse its memory
  uint64_t caught_up_ = 0;
  uint64_t anew_ = 0;
  uint64_t shared_ = 0;
  std::size_t in_flight_ = 0;
  std::size_t stand_ins_in_flight_ = 0;  // included in in_flight_
  std::size_t refusals_in_flight_ = 0;   // included in in_flight_
  bool told_of_pool_ = false;
};

}  // namespace rdmacoll
