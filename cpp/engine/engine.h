// One rank's engine. progress() in engine.cc is the whole loop, on one page.
//
// An engine is stepped from outside. It owns no thread, clock or socket: clock, transport and
// compute are passed in, so the simulator steps the same object. Driver owns the threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agreement/messages.h"
#include "agreement/situation.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/suspension.h"
#include "base/world.h"
#include "collectives/choose.h"
#include "compute/compute.h"
#include "engine/held_operations.h"
#include "engine/set_host.h"
#include "engine/set_table.h"
#include "engine/set_totals.h"
#include "engine/submissions.h"
#include "engine/timeline.h"
#include "execution/executor.h"
#include "memory/pool.h"
#include "memory/shared_results.h"
#include "operation/operation.h"
#include "transport/transport.h"

namespace rdmacoll {

class ProcessSet;

// How the threads of a rank have waited: how often they have slept, and moved to another core.
struct WaitCounters {
  uint64_t wakeups = 0, core_moves = 0;
};

struct EngineParts {
  World world;
  Config config;
  Transport& transport;
  Compute& compute;
  MemoryPool& pool;
  const Clock& clock;
  Log log;
  Tuning tuning = {};
  uint64_t ring_bytes = 2 << 20;  // the size of the executor's RingAllocator
};

// How long a leaving rank waits for its peers. A peer may itself wait for a rank that has stopped,
// and would blame the first rank that ends. So the limit is long enough for the peer timeout to
// name that rank.
constexpr Nanoseconds goodbye_limit(Nanoseconds peer_timeout) {
  return std::clamp(peer_timeout + kSecond, 2 * kSecond, 60 * kSecond);
}

class Engine final : public Sink, private SetHost {
 public:
  explicit Engine(EngineParts parts);
  ~Engine() override;

  // From any thread. An accepted operation is completed exactly once.
  Status submit(const OperationRef& operation);
  // Validates a request.
  Status check(const Request& request) const { return submissions_.check(request); }
  // The rank of a process in a set, or none if the set does not contain it.
  SetRank rank_in(uint32_t set, JobRank rank) const { return submissions_.rank_in(set, rank); }
  bool has_submissions() const { return submissions_.waiting(); }
  // Replaces the compute, as Executor::use() does, and the work memory on GPUs. Call it before
  // operations that need the new ones are submitted.
  void use(Compute& compute, GpuWork& work) {
    gpu_work_.store(&work, std::memory_order_release);
    executor_.use(compute);
  }

  // All functions below: only for the holder of the baton.
  //
  // take(): submit() for the next progress().
  Status take(const OperationRef& operation);
  // Never blocks. Returns whether anything moved. If not, there is nothing to do until an event
  // arrives.
  bool progress();
  // The time when the last progress() began. All events of a turn have this time. It saves readings
  // of the clock, which are system calls on some machines.
  Nanoseconds turned_at() const { return now_.turned_at; }
  // Whether the last progress() left nothing to do and nothing to send. The next one can only find
  // new messages of peers.
  bool is_settled() const;
  // Prepares to sleep. Returns false if something arrived meanwhile. The sleeper must announce its
  // sleep, and then check has_submissions(), too.
  bool arm();
  Nanoseconds next_deadline() const;
  // Whether progress() must run soon although no caller waits. True if work is pending here, or if
  // peers wait for this rank. False if this rank waits for peers only.
  bool needs_driver() const;
  // Whether a sleeper must look at the streams of GPUs from time to time, since a faulty GPU wakes
  // nobody.
  bool waits_for_gpu() const;

  // Adds a process set. Every rank of the job, member or not, makes the same calls of add_set() and
  // remove_set() in the same order. Ranks submit to a new set only after all have added it. A set
  // may be removed only when no rank has operations in flight in it.
  Status add_set(const std::vector<JobRank>& ranks, uint32_t& number);
  // Returns busy() while other ranks still need this rank for the set. Call it again.
  Status remove_set(uint32_t number);
  // Records all operations that end from now on. Null: none. Returns the earlier timeline.
  std::unique_ptr<Timeline> record_to(std::unique_ptr<Timeline> timeline) {
    return std::exchange(timeline_, std::move(timeline));
  }
  // The number of operations of this rank's callers that have not ended.
  std::size_t in_flight(uint32_t set);

  // Whether all neighbours of the control trees are connected.
  bool started() const;
  // Ends this rank's work and informs the other ranks. Call progress() until may_end(), then end().
  void leave(const std::string& said);
  bool may_end() const;
  void end();  // disconnects all peers, fails pending operations

  // Reports a rank failure that another part of this process has seen. `failure` is the message to
  // show.
  void blame(const Status& failure);
  // The reason why the world cannot start: a rank has failed, or has left already. ok() otherwise.
  Status start_failure() const;
  // At a parameter server: whether every worker has left and has received its answers. left() has
  // the cause of each, by rank.
  bool have_workers_left() const;
  const std::map<JobRank, std::string>& left() const { return departed_; }
  // The failure that ended this world, or ok().
  const Status& failure() const { return now_.failure; }
  // The failure that this rank has heard of while it left with its results, or ok().
  Status late_failure() const { return late_failure_ ? late_failure_->status : Status(); }
  std::string metrics_json(const WaitCounters& waits) const;
  std::string state() const;
  const World& world() const { return world_; }
  SetTotals totals() const;  // sums over all sets

 private:
  // Callbacks of the transport, inside poll().
  void connected(int peer) override;
  void sent(uint64_t cookie) override { executor_.sent(cookie); }
  void received(uint64_t cookie) override { executor_.received(cookie); }
  void viewed(uint64_t cookie, const View& view) override { executor_.viewed(cookie, view); }
  void control(int peer, std::span<const std::byte> message) override;
  void hear(JobRank peer, std::span<const std::byte> message, bool is_whole);
  void peer_failed(int peer, const std::string& cause) override;
  void answered(int peer, const std::string& refusal) override;
  GpuWork* gpu_work() override { return gpu_work_.load(std::memory_order_acquire); }

  void handle(JobRank peer, FailureMessage& message);
  void handle(JobRank peer, LeavingMessage& message);
  void handle(JobRank peer, GoodbyeMessage& message);
  void handle(JobRank peer, FarewellMessage& message);
  void handle(JobRank peer, FragmentMessage& message);

  // Callbacks of the sets.
  Nanoseconds time() const override { return clock_.now(); }
  void post(JobRank to, uint32_t set, const Message& message) override;
  void misses(JobRank peer) override;
  void fail(JobRank rank, Status status);
  void fail_this_rank(const Status& status) override;
  void name_late_failure(FailureMessage failure);
  bool post_late_failure();
  void broken_protocol(JobRank sender, const std::string& what) override;
  void starts(const Operation& operation) override;
  void begin(const OperationRef& operation) override;
  void set_next_number(uint32_t set, int64_t number) override {
    submissions_.set_next_number(set, number);
  }
  void end(const OperationRef& operation, const Status& status) override;
  void complete(const OperationRef& operation, const Status& status);  // notifies the caller

  bool advance();
  bool take_submissions();
  bool waits_for_stream(const OperationRef& operation);
  bool release_held();
  void end_held(const std::vector<OperationRef>& held, const Status& status);
  void hand_over(const OperationRef& operation);  // to its set
  bool execute();
  bool finish_operations();
  void lose(JobRank peer, const std::string& cause);
  bool fail_if_suspended();
  bool judge_suspects();
  bool end_failed_world();
  Status departure(const LeavingMessage& message) const;
  bool are_workers_gone() const;
  bool tolerates_loss_of(JobRank rank) const;
  int workers_without(JobRank lost) const;
  void depart(const LeavingMessage& message);
  bool has_ended_all(const LeavingMessage& message) const;
  bool answer_goodbyes();
  bool end_if_deserted();
  void complete_undecided(const Status& status);
  bool is_ahead_of(const LeavingMessage& message) const;

  void post_neighbours(const Message& message, JobRank except);
  bool poll_transport();
  bool flush_outbox() { return !outbox_.empty() && retry_outbox(); }
  bool retry_outbox();  // sends the messages that the transport refused

  ProcessSet& world_set() { return *sets_.front(); }
  ProcessSet* find_set(uint32_t number);
  std::size_t in_flight(const ProcessSet& set) const;
  // The set of an operation.
  ProcessSet& set_of(const Operation& operation) {
    const uint32_t number = operation.request.set;
    return number == 0 ? world_set() : *find_set(number);
  }
  JobRank me() const { return JobRank(world_.rank); }
  void make_set(uint32_t number, const SetMembers& members, const Lanes& lanes, uint64_t bytes);

  const World world_;
  const Config config_;
  Transport& transport_;
  MemoryPool& pool_;
  SharedResults results_;
  const Clock& clock_;
  const Nanoseconds peer_timeout_;
  Log log_;

  const Tuning tuning_;
  Situation now_;
  Submissions submissions_;
  HeldOperations held_;
  std::atomic<GpuWork*> gpu_work_{nullptr};  // null: no GPU was used
  Executor executor_;
  SetTable table_;                                 // all sets of the job, except the world
  std::vector<std::unique_ptr<ProcessSet>> sets_;  // the sets with this rank; the world is first

  // Control messages that the transport refused, by peer. No queue is empty.
  std::map<JobRank, std::deque<std::vector<std::byte>>> outbox_;
  std::map<JobRank, std::vector<std::byte>> fragments_;  // by peer: an incomplete message

  struct Suspect {
    JobRank rank;
    Status status;
    Nanoseconds due;
  };
  std::optional<FailureMessage> late_failure_;  // while this rank leaves with nothing in flight
  Nanoseconds late_failure_due_ = kNever;       // when peers without a farewell hear it
  std::vector<Suspect> suspects_;  // lost peers that another rank's failure may have ended
  Nanoseconds failed_at_ = 0, left_at_ = 0;
  bool ended_ = false;
  LeavingMessage first_departure_;           // the message of the first rank that left
  GoodbyeMessage goodbye_;                   // this rank says it while it leaves
  std::map<JobRank, std::string> departed_;  // ranks that have left, with the cause
  std::map<JobRank, LeavingMessage> said_goodbye_;
  // leaving peers that wait until this rank needs nothing more from them
  std::set<JobRank> goodbyes_to_answer_;
  // while this rank leaves: peers that may still need its data
  std::set<JobRank> goodbyes_unanswered_;
  std::set<JobRank> silent_;  // peers that no longer access memory of this process
  // Peers whose world has failed by a fault of this rank while it leaves, with the failure.
  std::map<JobRank, Status> ended_by_leaving_;

  std::vector<OperationRef> submitted_, released_, finished_;  // members to reuse their memory
  std::unique_ptr<Timeline> timeline_;                         // null: nothing is recorded

  // Totals since the start.
  SetTotals removed_;  // totals of removed sets
  uint64_t control_messages_ = 0;
  uint64_t operations_ = 0;
  uint64_t tensors_ = 0;
  uint64_t payload_bytes_ = 0;
  std::size_t in_flight_ = 0;
  bool polling_ = false;
  bool has_warned_of_gpus_ = false;
  bool settled_ = false;  // the last progress() moved nothing
  SuspensionDetector suspension_;
  // A turn without progress for this long, with operations in flight, counts as waiting.
  static constexpr Nanoseconds kWaitingMin = 5 * kMillisecond;
  Nanoseconds busy_since_ = 0;
  Nanoseconds busy_ = 0;
  Nanoseconds moved_at_ = 0;
  Nanoseconds waited_ = 0;  // the part of busy_ that counts as waiting
};

}  // namespace rdmacoll
