#include "engine/process_set.h"

#include <algorithm>
#include <cstring>

#include "base/small_range.h"
#include "base/text.h"
#include "operation/can_run_again.h"
#include "operation/placeholder.h"

namespace rdmacoll {
namespace {

Agreement::Rules rules_of(const SetParts& parts) {
  const Config& config = parts.config;
  Agreement::Rules rules;
  rules.limits.stall_error = from_seconds(config.stall_error_s);
  rules.limits.stall_warning =
      std::min(from_seconds(config.stall_warning_s), rules.limits.stall_error);
  rules.plan_repeats = config.plan_repeats;
  rules.checks_names = config.check_names;
  DecisionLog::Rules& log = rules.log;
  log.tuning = parts.tuning;
  log.tries_ways = config.tune != Tune::off;
  log.tries_places = !config.one_copy;
  log.looks_again = log.tries_ways && config.tune == Tune::online;
  log.segment_room = parts.segment_room;
  log.servers = parts.servers;
  // Colocated servers have no ranks: every worker serves a part.
  if (config.has_servers && config.is_colocated) log.forced.push_back({shareable_sum().algorithm});
  log.canonical = config.canonical;
  for (const AlgorithmRange& range : config.allreduce_algorithms) {
    log.forced.push_back({algorithm_from(range.algorithm), range.bytes_max});
  }
  log.segment_bytes = config.segment_bytes;
  return rules;
}

// The neighbours of a rank in the control tree.
std::vector<JobRank> neighbours_of(const SetWorld& world, const SetMembers& members) {
  const auto servers = members.begin() + world.size();
  if (world.is_server()) return {members.begin(), servers};
  std::vector<JobRank> neighbours;
  if (!world.is_root()) neighbours.push_back(members[tree_parent(world.rank())]);
  for (SetRank child : tree_children(world.rank(), world.size())) {
    neighbours.push_back(members[child]);
  }
  neighbours.insert(neighbours.end(), servers, members.end());
  return neighbours;
}

}  // namespace

ProcessSet::ProcessSet(SetParts parts, SetHost& host, const Situation& now)
    : number_(parts.number),
      job_(parts.job),
      world_(std::move(parts.world)),
      members_(std::move(parts.members)),
      lanes_(parts.lanes),
      host_(host),
      now_(now),
      transport_(parts.transport),
      pool_(parts.pool),
      results_(parts.results),
      executor_(parts.executor),
      log_(parts.log),
      neighbours_(neighbours_of(world_, members_)),
      agreement_(world_, rules_of(parts), *this, now_, log_),
      planner_({world_, members_, parts.servers, transport_, pool_, parts.gpu_work,
                parts.config.cuda_ipc, parts.tuning.gpu_direct_bytes, parts.segment_room}),
      result_addresses_(
          {number_, job_, world_, members_,
           parts.servers > 0 ? job_.local_size() == job_.size() : world_.is_one_node(), transport_,
           pool_, results_, host_, now_}),
      zeros_(lanes_.count) {
  for (JobRank peer : neighbours_) transport_.connect(peer.value());
}

bool ProcessSet::is_neighbour(JobRank rank) const {
  return std::find(neighbours_.begin(), neighbours_.end(), rank) != neighbours_.end();
}

bool ProcessSet::is_connected() const {
  return std::all_of(neighbours_.begin(), neighbours_.end(),
                     [&](JobRank peer) { return transport_.is_connected(peer.value()); });
}

// ---- the loop ----

bool ProcessSet::agree() {
  if (now_.turned_at - checked_at_ >= kCheckInterval) {
    checked_at_ = now_.turned_at;
    agreement_.check();
    results_.take_back();  // takes back lent results that are no longer used
  }
  bool moved = agreement_.pass_readiness();  // send readiness up; the root collects it
  moved |= decide();                         // root: send decisions down
  moved |= follow_plan();                    // in a plan: take the next decisions from it
  moved |= agreement_.gather();              // find the operations of the decisions
  moved |= start_batches();                  // start batches of the decided operations
  return agreement_.end_join() || moved;     // root: end the join once all ranks have joined
}

void ProcessSet::take(const OperationRef& operation) {
  if (in_flight_++ == 0) agreement_.note_progress();
  refusals_ += operation->request.refusal.empty() ? 0 : 1;
  if (!starts_at_once(operation)) agreement_.submit(operation);
}

bool ProcessSet::decide() {
  if (!agreement_.collect_ready()) return false;
  const Visibility visibility = this->visibility();
  bool moved = false;
  for (; has_room() && agreement_.decide(visibility, executor_.idle(lanes_)); moved = true) {
    start_batches();
  }
  if (moved) agreement_.start_plan();
  return moved;
}

bool ProcessSet::is_one_node() const {
  return world_.is_one_node() &&
         std::all_of(neighbours_.begin(), neighbours_.end(), [&](JobRank peer) {
           return transport_.is_connected(peer.value()) && transport_.reach(peer.value()).views;
         });
}

Visibility ProcessSet::visibility() {
  return {.one_node = is_one_node(),
          .callers = planner_.reads_callers(),
          .gpus = planner_.shares_gpus(),
          .gpu_copies = planner_.gpu_copies()};
}

// The decisions of a lane begin in their order. An earlier one may still lack operations here.
bool ProcessSet::has_room(uint64_t sequence) const {
  const auto comes_first = [&](const KeyedDecision& keyed) {
    const uint64_t earlier = keyed.decision.sequence;
    return earlier < sequence && lanes_.of(earlier) == lanes_.of(sequence);
  };
  return executor_.has_room(lanes_, sequence) && !is_any_of(agreement_.incomplete(), comes_first);
}

bool ProcessSet::follow_plan() {
  bool moved = false;
  for (; has_room() && agreement_.follow_plan(); moved = true) start_batches();
  if (in_flight_ > 0) agreement_.check_plan(has_room());
  return moved;
}

// Starts an operation at once if it is the next one of the plan, and nothing else waits.
bool ProcessSet::starts_at_once(const OperationRef& operation) {
  if (!has_room()) return false;
  const KeyedDecision* const next = agreement_.take_planned(*operation);
  if (next == nullptr) return false;
  if (now_.lost.empty() && planner_.can_replay(*operation, *next)) {
    in_place_ += next->decision.movement.in_place ? 1 : 0;
    host_.starts(*operation);
    const Status status = executor_.start(lanes_, next->decision.sequence, operation);
    if (!status.ok()) host_.fail_this_rank(status);
    return true;
  }
  CompleteDecision decision = next->with({operation});
  const bool is_started = planner_.connect(decision) && start_batch(decision);
  if (!is_started) agreement_.complete().push_back(std::move(decision));
  return true;
}

bool ProcessSet::start_batches() {
  std::deque<CompleteDecision>& complete = agreement_.complete();
  bool moved = false;
  for (; !complete.empty() && now_.goes_on(); moved = true) {
    CompleteDecision& next = complete.front();
    if (!has_room(next.sequence) || !planner_.connect(next)) {
      if (now_.lost.empty()) break;
      for (JobRank peer : planner_.peers_of(next)) misses(peer);
      break;
    }
    if (!start_batch(next)) break;
    complete.pop_front();
  }
  return moved;
}

// Requires connected peers and room in the executor. Returns false if the address of the results
// is not known yet, or on failure. The decision then still has its operations, which end with the
// world.
bool ProcessSet::start_batch(CompleteDecision& decision) {
  SharedResult result;
  if (!result_addresses_.find(decision, result)) return false;
  Batch batch;
  Status status = planner_.prepare(decision, result, batch);
  const bool is_ready = status.ok() && !misses_peer(batch);
  batch.is_trial = decision.is_trial;
  if (is_ready) in_place_ += decision.movement.in_place ? 1 : 0;
  if (is_ready && result.is_shared()) ++shared_;
  if (is_ready) {
    for (const OperationRef& operation : batch.operations) host_.starts(*operation);
    status = executor_.start(lanes_, std::move(batch));
  } else if (!batch.operations.empty()) {
    decision.operations = std::move(batch.operations);
  }
  if (!status.ok()) host_.fail_this_rank(status);
  return is_ready;
}

bool ProcessSet::misses(JobRank peer) {
  const bool is_lost = now_.lost.contains(peer);
  if (is_lost) host_.misses(peer);
  return is_lost;
}

bool ProcessSet::misses_peer(const Batch& batch) {
  const Program* program = batch.recipe->program;
  return program != nullptr && !now_.lost.empty() &&
         std::ranges::any_of(program->traffic,
                             [&](const Program::Traffic& one) { return misses(one.peer); });
}

void ProcessSet::report(OperationRef operation) {
  Status status;
  if (agreement_.settle(operation, status)) end(operation, status);
}

void ProcessSet::end(const OperationRef& operation, const Status& status) {
  if (std::exchange(operation->state.has_ended, true)) return;
  agreement_.ended(*operation, status.ok());
  if (operation->is_placeholder) {
    --placeholders_;
    if (agreement_.has_joined()) zeros_.give_back(std::move(operation->state.zeros));
  } else if (operation->request.kind == Kind::join) {
    zeros_.clear();
  }
  refusals_ -= operation->request.refusal.empty() ? 0 : 1;
  --in_flight_;
  host_.end(operation, status);
}

std::string ProcessSet::hear(JobRank peer, ResultAddressMessage& message) {
  std::string what = agreement_.complaint(members_.find(peer), message);
  const bool is_wrong = what.empty() && !result_addresses_.take(peer, message);
  return is_wrong ? "an address for results that no operation expects" : what;
}

// ---- for the agreement ----

void ProcessSet::post(SetRank to, const Message& message) {
  host_.post(members_[to], number_, message);
}

void ProcessSet::broken_protocol(SetRank sender, const std::string& what) {
  host_.broken_protocol(members_[sender], what);
}

bool ProcessSet::begin(const OperationRef& placeholder) {
  Request& request = placeholder->request;
  request.set = number_;
  if (!world_.is_server()) {  // a server sends nothing, not even zeros
    placeholder->state.zeros = zeros_.take(request.bytes());
    if (placeholder->state.zeros.memory == nullptr) {
      host_.fail_this_rank(
          {Code::failed, cat("no memory of ", bytes_text(request.bytes()), " to take part in '",
                             request.name, "' with zeros.")});
      return false;
    }
    lay_in(request, placeholder->state.zeros.memory.get());
  }
  ++in_flight_;
  ++placeholders_;
  host_.begin(placeholder);
  return true;
}

void ProcessSet::end_join(const OperationRef& join, const AllJoinedMessage& message) {
  const int64_t last = members_[message.last].value();
  Operation::Result result{{}, sizeof last, std::make_unique<std::byte[]>(sizeof last)};
  std::memcpy(result.memory.get(), &last, sizeof last);
  join->results.push_back(std::move(result));
  host_.set_next_number(number_, message.next_number);
  end(join, {});
}

uint64_t ProcessSet::kept() const {
  uint64_t kept = 0;
  executor_.each_operation(lanes_, [&](uint64_t sequence, const Operation& operation) {
    if (!can_run_again(operation, world_.rank())) kept = std::max(kept, sequence + 1);
  });
  return kept;
}

void ProcessSet::segments_are_short(uint64_t segment_bytes) {
  if (std::exchange(has_warned_of_pool_, true)) return;
  const std::string part =
      number_ == 0 ? std::string("the") : cat("process set ", number_, "'s part of the");
  log_.warning(cat(part, " buffer pool of ", bytes_text(pool_.size()),
                   " is so small that large tensors are cut into segments of ",
                   bytes_text(segment_bytes),
                   ", which costs time. Raise RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE)."));
}

// ---- the end, and the state ----

bool ProcessSet::is_deserted() const {
  if (now_.departed.ok() || now_.leaving) return false;
  return agreement_.misses_departed() && !executor_.runs_before(lanes_, agreement_.departed_from());
}

bool ProcessSet::has_ended_all(uint64_t before) const {
  return agreement_.has_begun_all(before) && !executor_.runs_before(lanes_, before);
}

bool ProcessSet::is_drained() const { return agreement_.is_drained() && executor_.idle(lanes_); }

SetTotals ProcessSet::totals() const {
  const PlanTotals plans = agreement_.plan_totals();
  return {plans.begun,         plans.left, plans.caught_up, plans.replayed,
          planner_.programs(), shared_,    in_place_};
}

std::string ProcessSet::state() const {
  const std::string set = number_ == 0
                              ? ""
                              : cat("  process set ", number_, " (ranks ", join(members_, ", "),
                                    "): ", in_flight_, " operations in flight\n");
  return set + agreement_.state();
}

}  // namespace rdmacoll
