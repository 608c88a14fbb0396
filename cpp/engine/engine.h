// One rank's engine: the whole loop of HOW data moves is progress(), on one page in engine.cc.
//
// An Engine is stepped. It owns no thread, no clock, no socket: clock, transport and compute are
// given, so that the simulator steps the very same object. Threads are the business of Driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/world.h"
#include "collectives/choose.h"
#include "compute/compute.h"
#include "engine/catch_up.h"
#include "engine/decision_log.h"
#include "engine/descriptor_table.h"
#include "engine/executor.h"
#include "engine/messages.h"
#include "engine/operation.h"
#include "engine/plan.h"
#include "engine/plan_mode.h"
#include "engine/readiness.h"
#include "engine/recurrence.h"
#include "engine/submissions.h"
#include "memory/pool.h"
#include "transport/transport.h"

namespace rdmacoll {

struct EngineParts {
  World world;
  Config config;
  Transport& transport;
  Compute& compute;
  MemoryPool& pool;
  const Clock& clock;
  Log log;
  Tuning tuning = {};
};

// Late and stalled operations, and plans that do not go on, are looked for this often.
inline constexpr Nanoseconds kCheckInterval = kMillisecond;
// So long an operation waits for those that the plan has before it, when there is room for them.
inline constexpr Nanoseconds kPlanPatience = 100 * kMillisecond;

class Engine final : public Sink {
 public:
  explicit Engine(EngineParts parts);

  // Any thread. An operation that was accepted is completed exactly once.
  Status submit(const OperationRef& operation);
  bool has_submissions() const { return submissions_.waiting(); }

  // Everything below: the holder of the baton only.
  // Never blocks. Returns whether anything moved; false means: nothing to do until something comes.
  bool progress();
  // When the last progress() began: what happens in a turn happens then, for the engine and for who
  // drives it. Reading the clock is a system call on some machines (user-mode Linux for one).
  Nanoseconds turned_at() const { return turned_at_; }
  // Nothing is left to do here, as far as the last progress() has shown, and everything has been
  // said: the next one can only find what peers have sent meanwhile.
  bool has_said_all() const {
    return !executor_.has_steps() && !submissions_.waiting() && outbox_.empty() &&
           !transport_.needs_poll() && !has_to_agree();
  }
  // Before sleeping. False: something arrived meanwhile. The sleeper must also look at
  // has_submissions() after it has said that it sleeps.
  bool arm();
  Nanoseconds next_deadline() const;
  // Whether progress() must go on soon though no caller waits: something is pending here, or peers
  // wait for what this rank still has to do. What peers alone have to do is no reason.
  bool needs_driver() const;

  // All neighbours of the control tree are connected.
  bool started() const;
  // The end of this rank's work: says so to the others. progress() until may_end(), then end().
  void leave(const std::string& said);
  bool may_end() const;
  void end();  // lets every peer go, fails what is pending

  // Why the world cannot come to stand: a rank has failed, or has left already; ok() while it can.
  Status start_failure() const;
  // The failure that ended this world, ok() while there is none.
  const Status& failure() const { return failure_; }
  std::string metrics_json(uint64_t wakeups) const;  // `wakeups`: how often a driver has slept
  std::string state() const;
  const World& world() const { return world_; }
  // How many plans this rank has followed, how many it has left, and how many decisions some ranks
  // had to catch up with then.
  uint64_t plans() const { return (plan_.era() + 1) / 2; }
  uint64_t plans_left() const { return plan_.era() / 2; }
  uint64_t caught_up() const { return caught_up_; }

 private:
  // From the transport, inside poll().
  void connected(int peer) override;
  void sent(uint64_t cookie) override { executor_.transferred(cookie); }
  void received(uint64_t cookie) override { executor_.transferred(cookie); }
  void viewed(uint64_t cookie, const View& view) override { executor_.viewed(cookie, view); }
  void control(int peer, std::span<const std::byte> message) override;
  void peer_failed(int peer, const std::string& cause) override;

  void handle(int peer, ReadyMessage& message);
  void handle(int peer, InternMessage& message);
  void handle(int peer, Decision& decision);
  void handle(int peer, VerdictMessage& message);
  void handle(int peer, FailureMessage& message);
  void handle(int peer, LeavingMessage& message);
  void handle(int peer, GoodbyeMessage& message);
  void handle(int peer, FarewellMessage& message);
  void handle(int peer, PlanMessage& message);
  void handle(int peer, FreezeMessage& message);
  void handle(int peer, FrozenMessage& message);
  void handle(int peer, ResumeMessage& message);
  void handle(int peer, JoinedMessage& message);
  void handle(int peer, FragmentMessage& message);

  using Operations = std::map<UnitKey, OperationRef>;
  struct Found {
    Operations* among = nullptr;
    Operations::iterator at;
  };

  bool advance();
  void notice_gap();
  bool take_submissions();
  void announce(const OperationRef& operation);
  void announce(ReadyRecord record);
  bool pass_readiness();
  bool decide();
  void offer_ready();
  void obey(Agreed agreed);
  bool gather_operations();
  bool take_operations(const Agreed& agreed);
  bool find_operation(const DecisionUnit& unit, const UnitKey& key, Found& found);

  // Plan mode: engine_plan.cc.
  bool follow_plan();
  bool has_to_agree() const;
  bool starts_at_once(const OperationRef& operation);
  void start_plan();
  void begin_plan(const PlanMessage& message);
  bool is_plan_stuck();
  void freeze(int except = -1);
  void report_frozen(uint64_t least, uint64_t furthest);
  void resume(const ResumeMessage& message);
  void unit_joined(const UnitKey& key);
  void complete_joined();
  void stand_in(const DecisionUnit& unit, const UnitKey& key);
  bool judge_started(const UnitKey& key, const Status& verdict);
  Agreed agreed_of(Decision decision) const;
  bool start_batches();
  bool start_batch(Decided& decided);
  void miss_peer_of(const Decided& decided);
  Status missing_peer(const Batch& batch) const;
  bool execute();
  bool finish_operations();
  void report(OperationRef operation);
  void complete(const OperationRef& operation, const Status& status);
  void apply(const VerdictMessage& verdict);
  void fail(int rank, Status status);
  void fail_myself(const Status& status);
  bool judge_suspects();
  bool end_failed_world();
  Status departure(const LeavingMessage& message) const;
  void depart(const LeavingMessage& message);
  bool has_ended_all(uint64_t before) const;
  bool answer_goodbyes();
  bool end_deserted();
  void complete_undecided(const Status& status);

  void post(int peer, const Message& message);
  void post_down(const Message& message);
  bool pass_down(const Decision& decision);
  void post_neighbours(const Message& message, int except);
  bool poll_transport();
  bool flush_outbox();
  void broken_protocol(int peer, const std::string& what);
  bool is_root() const { return world_.rank == 0; }
  // Of the control tree.
  bool is_leaf() const { return neighbours_.size() == (is_root() ? 0 : 1); }

  const World world_;
  const Config config_;
  Transport& transport_;
  Compute& compute_;
  MemoryPool& pool_;
  const Clock& clock_;
  const Nanoseconds peer_timeout_;
  Log log_;

  std::vector<int> neighbours_;  // in the control tree: parent first (but at the root), children
  Submissions submissions_;
  DescriptorTable table_;
  Readiness readiness_;
  DecisionLog decision_log_;
  Planner planner_;
  Executor executor_;

  Operations undecided_;         // wait for their decision
  std::deque<Agreed> agreed_;    // decisions whose operations are not all here
  std::deque<Decided> decided_;  // not started yet
  // Control messages refused as busy; no empty ones.
  std::map<int, std::deque<std::vector<std::byte>>> outbox_;
  std::map<int, std::vector<std::byte>> fragments_;  // by peer: a message whose end has not come

  struct Suspect {
    int rank;
    Status status;
    Nanoseconds due;
  };
  std::vector<Suspect> suspects_;  // lost, and perhaps not by their own fault
  Status failure_;
  Nanoseconds failed_at_ = 0;
  bool ended_ = false;
  bool leaving_ = false;
  Status departed_;            // the first rank that left: no more collectives in this world
  LeavingMessage first_gone_;  // what it said
  uint64_t departed_from_ = UINT64_MAX;  // decisions that a rank which has left takes no part in
  std::set<int> gone_;                   // ranks that have left
  std::map<int, LeavingMessage> said_goodbye_;
  std::set<int> to_answer_;   // of those: who waits until this rank has what it needs of them
  std::set<int> unanswered_;  // this rank leaves: who may still need something of it
  std::set<int> lost_;        // peers without a connection any more
  std::set<int> silent_;      // peers that will not touch our memory any more
  Nanoseconds checked_at_ = 0;

  PlanMode plan_;
  Recurrence recurrence_;  // at the root
  CatchUp catch_up_;
  Operations stand_ins_;              // wait for their decision's turn
  std::map<UnitKey, Status> judged_;  // of operations that run, and end with this
  std::vector<OperationRef> held_;    // ended, but not all ranks have joined
  Nanoseconds plan_moved_at_ = 0;
  Nanoseconds plan_checked_at_ = 0;
  std::vector<OperationRef> submitted_, finished_;  // these are kept for their capacity
  std::vector<Found> found_;
  uint64_t caught_up_ = 0;

  // Totals since start.
  uint64_t control_messages_ = 0;
  uint64_t operations_ = 0;
  uint64_t tensors_ = 0;
  uint64_t payload_bytes_ = 0;
  std::size_t in_flight_ = 0;
  std::size_t stand_ins_in_flight_ = 0;  // of those
  bool polling_ = false;
  bool told_of_pool_ = false;
  bool settled_ = false;  // the last progress() moved nothing
  Nanoseconds turned_at_ = 0;
  Nanoseconds resumed_at_ = 0;  // after a gap longer than the peers' patience
  Nanoseconds gap_ = 0;
  Nanoseconds busy_since_ = 0;
  Nanoseconds busy_ = 0;
};

}  // namespace rdmacoll
