#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/small_range.h"
#include "base/text.h"
#include "engine/process_set.h"

namespace rdmacoll {
namespace {

// Half of the pool belongs to the engine, the other half to callers. A quarter of the engine's half
// is for sets other than the world.
constexpr uint64_t kEngineShare = 2;
constexpr uint64_t kSetsShare = 4;

}  // namespace

Engine::Engine(EngineParts parts)
    : world_(std::move(parts.world)),
      config_(std::move(parts.config)),
      transport_(parts.transport),
      pool_(parts.pool),
      results_(parts.pool),
      clock_(parts.clock),
      peer_timeout_(from_seconds(config_.peer_timeout_s)),
      log_(parts.log),
      tuning_(parts.tuning),
      submissions_(parts.log),
      executor_(world_.size(), transport_, parts.compute, pool_, gpu_work_, parts.ring_bytes,
                tuning_.links.memory.shared_cache_bytes),
      table_(world_.workers(), pool_.size() / kEngineShare / kSetsShare) {
  std::vector<JobRank> everybody;
  for (int rank = 0; rank < world_.size(); ++rank) everybody.emplace_back(rank);
  const uint64_t bytes = pool_.size() / kEngineShare;
  make_set(0, SetMembers(everybody), {0, kBatchesInFlight}, bytes - bytes / kSetsShare);
  everybody.resize(static_cast<std::size_t>(world_.workers()));
  const SetMembers workers(std::move(everybody));
  submissions_.open(0, workers.find(me()), workers);
}

Engine::~Engine() = default;

// ---- the loop ----

bool Engine::progress() {
  const bool waits = in_flight_ > 0;
  settled_ = !advance();
  if (settled_) return false;
  // A long turn without progress means that peers were late.
  const Nanoseconds gap = now_.turned_at - moved_at_;
  if (waits && gap >= kWaitingMin) waited_ += gap;
  moved_at_ = now_.turned_at;
  return true;
}

bool Engine::advance() {
  now_.turned_at = clock_.now();
  suspension_.turn(now_.turned_at, peer_timeout_);
  bool moved = take_submissions();  // take the callers' operations
  // Operations that a plan has started send their data in this turn, before answers are read.
  if (moved && now_.goes_on() && suspects_.empty()) execute();
  moved |= poll_transport();  // receive control messages and completions
  if (!suspects_.empty() && now_.goes_on()) moved |= judge_suspects();
  if (!now_.goes_on()) return end_failed_world() || moved;
  if (!suspects_.empty()) return moved;
  for (const auto& set : sets_) {  // agree on the next operations, and start batches
    if (set->has_to_agree()) moved |= set->agree();
  }
  moved |= execute();            // run the steps that are ready
  moved |= finish_operations();  // return memory to the callers
  moved |= end_if_deserted();    // end operations that wait for a rank that has left
  if (!goodbyes_to_answer_.empty()) moved |= answer_goodbyes();
  if (late_failure_) moved |= post_late_failure();  // tell peers that still wait
  return flush_outbox() || moved;
}

Status Engine::submit(const OperationRef& operation) {
  const bool is_checked = operation->is_prepared || !operation->request.refusal.empty();
  if (!is_checked) RC_RETURN_IF_ERROR(submissions_.check(operation->request));
  return submissions_.add(operation);
}

Status Engine::take(const OperationRef& operation) {
  if (!operation->is_prepared) RC_RETURN_IF_ERROR(submissions_.check(operation->request));
  return submissions_.add_and_drain(operation, submitted_);
}

bool Engine::is_settled() const {
  return !executor_.has_steps() && !submissions_.waiting() && outbox_.empty() &&
         !transport_.needs_poll() &&
         !is_any_of(sets_, [](const auto& set) { return set->has_to_agree(); });
}

bool Engine::take_submissions() {
  submissions_.drain(submitted_);
  const bool moved = !held_.empty() && release_held();
  if (submitted_.empty()) return moved;
  for (const OperationRef& operation : submitted_) {
    begin(operation);
    operation->state.taken_at = now_.turned_at;
    if (!waits_for_stream(operation)) hand_over(operation);
  }
  submitted_.clear();
  return true;
}

void Engine::hand_over(const OperationRef& operation) {
  ProcessSet& set = set_of(*operation);
  if (!now_.goes_on() || !now_.departed.ok()) {
    end(operation, now_.goes_on() ? now_.departed : now_.failure);
  } else {
    set.take(operation);
  }
}

bool Engine::execute() {
  const bool moved = executor_.poll();
  const Status& status = executor_.status();
  if (status.code() == Code::rank_failed && status.detail().rank != me()) {
    const JobRank peer = status.detail().rank;
    lose(peer, status.detail().cause);  // its memory cannot be read
    misses(peer);
  } else if (status.code() == Code::mismatch) {
    broken_protocol(status.detail().rank, status.message());
  } else if (!status.ok()) {
    fail_this_rank(status);
  }
  return moved;
}

// Polls the transport once more between the last read of a peer's memory and the success of an
// operation. So a rank that already knows of a failure reports it instead of a sum. Bytes that were
// read too late do not come here: see Executor::end_of_viewed.
//
// The poll also sends the messages of this turn. Peers wait for them, and a caller that drives may
// return with its result.
//
// No message is read between the decision that an operation ends early and its end. Otherwise a
// plan that is being left could hold or repeat it, while its work on a GPU goes on.
bool Engine::finish_operations() {
  const bool may_end_early = executor_.has_enqueued() && suspects_.empty();
  if (!may_end_early && !executor_.has_finished()) return false;
  if (may_end_early || executor_.has_viewed() || transport_.needs_poll()) {
    poll_transport();
    if (!suspects_.empty() && now_.goes_on()) return true;  // the operations end with the suspects
  }
  if (may_end_early) {
    executor_.finish_enqueued([this](const Operation& operation) {
      return set_of(operation).agreement().ends_well(operation);
    });
  }
  if (!executor_.has_finished()) return false;
  executor_.take_finished(finished_);
  for (OperationRef& operation : finished_) {
    ProcessSet& set = set_of(*operation);
    set.report(std::move(operation));
  }
  finished_.clear();
  return true;
}

void Engine::begin(const OperationRef& operation) {
  // the caller does not wait for a refused operation
  if (!operation->request.refusal.empty()) return;
  if (in_flight_++ == 0) busy_since_ = now_.turned_at;
}

void Engine::starts(const Operation& operation) {
  if (timeline_ != nullptr && !operation.is_placeholder) timeline_->begin(operation);
}

void Engine::end(const OperationRef& operation, const Status& status) {
  if (!operation->request.refusal.empty()) {
    submissions_.forget(*operation);
    return operation->complete(status);
  }
  if (--in_flight_ == 0) busy_ += now_.turned_at - busy_since_;
  if (!operation->is_placeholder) {
    ++operations_;
    tensors_ += operation->request.tensors.size();
    payload_bytes_ += operation->request.bytes();
    submissions_.forget(*operation);
    if (timeline_ != nullptr) timeline_->record(*operation, status);
  }
  for (const OperationRef& next : std::exchange(operation->behind, {})) {
    const Status ending = submissions_.release(next, status);
    if (!ending.ok()) complete(next, ending);
  }
  complete(operation, status);
}

void Engine::complete(const OperationRef& operation, const Status& status) {
  // A callback may take long, for example in TensorFlow's scheduler, while peers wait for this
  // thread. A caller that drives for its own operation runs it directly.
  const bool may_take_long = operation->request.done && !operation->is_driven_by_caller;
  const auto complete = [operation, status] { operation->complete(status); };
  if (may_take_long && executor_.compute().hand_over(complete)) return;
  operation->complete(status);
}

}  // namespace rdmacoll
