// One rank's engine: the whole loop of HOW data moves is progress(), on one page in engine.cc.
//
// An Engine is stepped. It owns no thread, no clock, no socket: clock, transport and compute are
// given, so that the simulator steps the very same object. Threads are the business of Driver.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agreement/messages.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/gap.h"
#include "base/log.h"
#include "base/status.h"
#include "base/world.h"
#include "collectives/choose.h"
#include "compute/compute.h"
#include "engine/process_set.h"
#include "engine/set_table.h"
#include "engine/submissions.h"
#include "execution/executor.h"
#include "memory/pool.h"
#include "memory/shared_results.h"
#include "operation/operation.h"
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

// How long whoever leaves waits for its peers. One of them may wait in turn for a rank that has
// stopped, and takes whoever ends first for the cause: so, until silence has named that rank.
constexpr Nanoseconds goodbye_limit(Nanoseconds peer_timeout) {
  return std::clamp(peer_timeout + kSecond, 2 * kSecond, 60 * kSecond);
}

class Engine final : public Sink, private SetHost {
 public:
  explicit Engine(EngineParts parts);

  // Any thread. An operation that was accepted is completed exactly once.
  Status submit(const OperationRef& operation);
  // What is wrong with a request, whose ranks are those of its set.
  Status check(const Request& request) const;
  // What a set calls a rank of the job; -1: it is not in it.
  int rank_in(uint32_t set, int rank) const { return submissions_.rank_in(set, rank); }
  bool has_submissions() const { return submissions_.waiting(); }

  // Everything below: the holder of the baton only.
  // submit(), for the next progress().
  Status take(const OperationRef& operation);
  // Never blocks. Returns whether anything moved; false means: nothing to do until something comes.
  bool progress();
  // When the last progress() began: what happens in a turn happens then, for the engine and for who
  // drives it. Reading the clock is a system call on some machines (user-mode Linux for one).
  Nanoseconds turned_at() const { return now_.turned_at; }
  // Nothing is left to do here, as far as the last progress() has shown, and everything has been
  // said: the next one can only find what peers have sent meanwhile.
  bool has_said_all() const;
  // Before sleeping. False: something arrived meanwhile. The sleeper must also look at
  // has_submissions() after it has said that it sleeps.
  bool arm();
  Nanoseconds next_deadline() const;
  // Whether progress() must go on soon though no caller waits: something is pending here, or peers
  // wait for what this rank still has to do. What peers alone have to do is no reason.
  bool needs_driver() const;

  // Process sets beside the world. Every rank of the job calls this for the same sets in the same
  // order, members or not; nobody submits to a new set before all have called, and nobody has
  // anything in flight in a set that is removed, anywhere.
  Status add_set(const std::vector<int>& ranks, uint32_t& number);
  // busy(): what others need of this rank is not done yet; ask again.
  Status remove_set(uint32_t number);
  // How many operations of this rank's callers have not ended.
  std::size_t in_flight(uint32_t set);

  // All neighbours of the control trees are connected.
  bool started() const;
  // The end of this rank's work: says so to the others. progress() until may_end(), then end().
  void leave(const std::string& said);
  bool may_end() const;
  void end();  // lets every peer go, fails what is pending

  // A rank has failed, as somebody else in this process knows, whose sentence this is.
  void blame(const Status& failure);
  // Why the world cannot come to stand: a rank has failed, or has left already; ok() while it can.
  Status start_failure() const;
  // Of a parameter server: every worker has left, and has had its answers. Why each of them did, by
  // rank.
  bool have_workers_left() const;
  const std::map<int, std::string>& left() const { return gone_; }
  // The failure that ended this world, ok() while there is none.
  const Status& failure() const { return now_.failure; }
  std::string metrics_json(uint64_t wakeups) const;  // `wakeups`: how often a driver has slept
  std::string state() const;
  const World& world() const { return world_; }
  SetTotals totals() const;  // over all sets

 private:
  // From the transport, inside poll().
  void connected(int peer) override;
  void sent(uint64_t cookie) override { executor_.sent(cookie); }
  void received(uint64_t cookie) override { executor_.received(cookie); }
  void viewed(uint64_t cookie, const View& view) override { executor_.viewed(cookie, view); }
  void control(int peer, std::span<const std::byte> message) override;
  void hear(int peer, std::span<const std::byte> message, bool is_whole);
  void peer_failed(int peer, const std::string& cause) override;

  void handle(int peer, FailureMessage& message);
  void handle(int peer, LeavingMessage& message);
  void handle(int peer, GoodbyeMessage& message);
  void handle(int peer, FarewellMessage& message);
  void handle(int peer, FragmentMessage& message);

  // From the sets.
  void post(int rank, uint32_t set, const Message& message) override;
  void fail(int rank, Status status) override;
  void fail_myself(const Status& status) override;
  void broken_protocol(int rank, const std::string& what) override;
  void begin(const OperationRef& operation) override;
  void number_from(uint32_t set, int64_t number) override { submissions_.number_from(set, number); }
  void end(const OperationRef& operation, const Status& status) override;
  void complete(const OperationRef& operation, const Status& status);  // tells its caller

  bool advance();
  bool take_submissions();
  bool execute();
  bool finish_operations();
  bool judge_suspects();
  bool end_failed_world();
  Status departure(const LeavingMessage& message) const;
  bool are_workers_gone() const;
  bool goes_on_without(int rank) const;
  int workers_without(int lost) const;
  void depart(const LeavingMessage& message);
  bool has_ended_all(const LeavingMessage& message) const;
  bool answer_goodbyes();
  bool end_deserted();
  void complete_undecided(const Status& status);
  bool is_ahead_of(const LeavingMessage& message) const;

  void post_neighbours(const Message& message, int except);
  bool poll_transport();
  bool flush_outbox() { return !outbox_.empty() && post_again(); }
  bool post_again();  // what was refused

  ProcessSet& world_set() { return *sets_.front(); }
  ProcessSet* find_set(uint32_t number);
  // Of an operation that was submitted, or a batch.
  ProcessSet& set_of(const Operation& operation) {
    const uint32_t number = operation.request.set;
    return number == 0 ? world_set() : *find_set(number);
  }
  void make_set(uint32_t number, const std::vector<int>& ranks, const Lanes& lanes, uint64_t bytes);

  const World world_;
  const Config config_;
  Transport& transport_;
  Compute& compute_;
  MemoryPool& pool_;
  SharedResults results_;
  const Clock& clock_;
  const Nanoseconds peer_timeout_;
  Log log_;

  const Tuning tuning_;
  Situation now_;
  Submissions submissions_;
  Executor executor_;
  SetTable table_;                                 // of all sets of the job but the world
  std::vector<std::unique_ptr<ProcessSet>> sets_;  // that this rank is in; the world first

  // Control messages refused as busy; no empty ones.
  std::map<int, std::deque<std::vector<std::byte>>> outbox_;
  std::map<int, std::vector<std::byte>> fragments_;  // by peer: a message whose end has not come

  struct Suspect {
    int rank;
    Status status;
    Nanoseconds due;
  };
  std::vector<Suspect> suspects_;  // lost, and perhaps not by their own fault
  Nanoseconds failed_at_ = 0;
  bool ended_ = false;
  LeavingMessage first_gone_;        // what the first rank that left has said
  std::map<int, std::string> gone_;  // ranks that have left, and why
  std::map<int, LeavingMessage> said_goodbye_;
  std::set<int> to_answer_;   // of those: who waits until this rank has what it needs of them
  std::set<int> unanswered_;  // this rank leaves: who may still need something of it
  std::set<int> silent_;      // peers that will not touch our memory any more

  std::vector<OperationRef> submitted_, finished_;  // these are kept for their capacity

  // Totals since start.
  SetTotals removed_;  // of sets that are no more
  uint64_t control_messages_ = 0;
  uint64_t operations_ = 0;
  uint64_t tensors_ = 0;
  uint64_t payload_bytes_ = 0;
  std::size_t in_flight_ = 0;
  bool polling_ = false;
  bool settled_ = false;  // the last progress() moved nothing
  Gap gap_;
  Nanoseconds stopped_for_ = 0;  // what it says
  // Operations are in flight, and for so long nothing comes: the time counts as waiting.
  static constexpr Nanoseconds kLateGap = 5 * kMillisecond;
  Nanoseconds busy_since_ = 0;
  Nanoseconds busy_ = 0;
  Nanoseconds moved_at_ = 0;
  Nanoseconds late_ = 0;  // of busy_
};

}  // namespace rdmacoll
