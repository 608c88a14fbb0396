// A process set: ranks that take part in the same operations. The world is set 0. An engine has one
// object for each set that contains its rank. Agreement says which operations run next, and the set
// runs them. The sets share the executor. Each has its own lanes there, so no set waits for
// another.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "agreement/agreement.h"
#include "agreement/situation.h"
#include "base/config.h"
#include "base/log.h"
#include "base/set_world.h"
#include "base/status.h"
#include "base/world.h"
#include "collectives/choose.h"
#include "engine/result_addresses.h"
#include "engine/set_host.h"
#include "engine/set_totals.h"
#include "engine/zeros.h"
#include "execution/executor.h"
#include "execution/planner.h"
#include "memory/pool.h"
#include "memory/shared_results.h"
#include "operation/operation.h"
#include "transport/transport.h"

namespace rdmacoll {

struct SetParts {
  uint32_t number = 0;
  const World& job;
  SetWorld world;
  SetMembers members;
  int servers = 0;
  Lanes lanes;                // its lanes in the executor
  uint64_t segment_room = 0;  // memory of the pool for a segment in flight
  const Config& config;
  const Tuning& tuning;
  Transport& transport;
  MemoryPool& pool;
  const std::atomic<GpuWork*>& gpu_work;
  SharedResults& results;
  Executor& executor;
  Log log;
};

// Only for the holder of the baton, like Engine.
class ProcessSet final : private AgreementHost {
 public:
  ProcessSet(SetParts parts, SetHost& host, const Situation& now);

  uint32_t number() const { return number_; }
  const SetWorld& world() const { return world_; }
  const std::vector<JobRank>& neighbours() const { return neighbours_; }
  bool is_neighbour(JobRank rank) const;
  bool is_connected() const;  // to all neighbours
  Agreement& agreement() { return agreement_; }
  const Agreement& agreement() const { return agreement_; }

  // ---- the loop ----
  void take(const OperationRef& operation);  // the caller has submitted the operation
  // Whether agree() could move anything beyond the batches that run already.
  bool has_to_agree() const {
    return now_.turned_at - checked_at_ >= kCheckInterval || agreement_.has_work();
  }
  bool agree();
  // The operation has ended in the executor.
  void report(OperationRef operation);
  // The operation ends, for whatever reason.
  void end(const OperationRef& operation, const Status& status) override;
  Nanoseconds next_deadline() const { return agreement_.next_deadline(in_flight_ > 0); }

  // ---- messages of members ----
  // Takes a message, unless it is wrong. Returns "" if it is valid. Otherwise returns the end of
  // the sentence "it sent ...".
  template <AgreementMessage Body>
  std::string hear(JobRank peer, Body& message) {
    return agreement_.hear(members_.find(peer), message);
  }
  std::string hear(JobRank peer, ResultAddressMessage& message);
  void connected() { planner_.connected(); }

  // ---- the end ----
  // Whether decisions wait for a rank that has left.
  bool is_deserted() const;
  bool is_drained() const;                    // no decision is left to run
  bool has_ended_all(uint64_t before) const;  // all decisions before this one have ended

  // ---- state and metrics ----
  const std::set<JobRank>& requested_peers() const { return planner_.requested_peers(); }
  // Operations that a caller waits for.
  std::size_t in_flight() const { return in_flight_ - placeholders_ - refusals_; }
  SetTotals totals() const;
  std::string state() const;

 private:
  // AgreementHost: the agreement calls these.
  Nanoseconds time() const override { return host_.time(); }
  void post(SetRank to, const Message& message) override;
  void broken_protocol(SetRank sender, const std::string& what) override;
  bool begin(const OperationRef& placeholder) override;
  void end_join(const OperationRef& join, const AllJoinedMessage& message) override;
  uint64_t kept() const override;
  void segments_are_short(uint64_t segment_bytes) override;

  bool decide();
  bool follow_plan();
  bool has_room(uint64_t sequence) const;
  bool has_room() const { return has_room(agreement_.accepted()); }
  bool is_one_node() const;
  Visibility visibility();
  bool starts_at_once(const OperationRef& operation);
  bool start_batches();
  bool start_batch(CompleteDecision& decision);
  bool misses(JobRank peer);  // whether it is lost; the engine judges why
  bool misses_peer(const Batch& batch);

  const uint32_t number_;
  const World& job_;
  const SetWorld world_;
  const SetMembers members_;
  const Lanes lanes_;
  SetHost& host_;
  const Situation& now_;
  Transport& transport_;
  MemoryPool& pool_;
  SharedResults& results_;
  Executor& executor_;
  Log log_;

  // First the parent in the control tree (not at the root), then the children,
  // then the servers. Servers are neighbours of all ranks.
  std::vector<JobRank> neighbours_;
  Agreement agreement_;
  Planner planner_;
  ResultAddresses result_addresses_;
  Zeros zeros_;

  Nanoseconds checked_at_ = 0;
  uint64_t shared_ = 0;
  uint64_t in_place_ = 0;
  std::size_t in_flight_ = 0;
  std::size_t placeholders_ = 0;  // included in in_flight_
  std::size_t refusals_ = 0;      // included in in_flight_
  bool has_warned_of_pool_ = false;
};

}  // namespace rdmacoll
