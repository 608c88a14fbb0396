// The end of an engine: a peer fails, a rank leaves, or this rank leaves.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "engine/engine.h"
#include "engine/process_set.h"

namespace rdmacoll {
namespace {

// How long the news of a failure may take to leave this process before its peers are disconnected.
constexpr Nanoseconds kFailureFlush = 200 * kMillisecond;
// How long to wait for the control tree to report why a peer has ended that is no neighbour there.
constexpr Nanoseconds kHearsay = 100 * kMillisecond;
// How long a leaving rank keeps a failure to itself. Operations of peers that need nothing of the
// failed rank end well meanwhile.
constexpr Nanoseconds kLateFailure = kSecond;
constexpr const char* kLeftTooEarly = "left before this rank had its data";
// The limit for the cause of an end, which comes from user code.
constexpr std::size_t kCauseBytesMax = 1000;

// A failure that a rank has caused itself, while it still answers.
Status at_fault(const World& world, JobRank rank, const std::string& cause) {
  const int number = rank.value();
  return world.blaming(number, cat(world.describe(number), " failed: ", cause, world.loss(number)),
                       cause);
}

}  // namespace

void Engine::peer_failed(int lost, const std::string& cause) {
  const JobRank peer(lost);
  silent_.insert(peer);
  outbox_.erase(peer);
  goodbyes_to_answer_.erase(peer);
  goodbyes_unanswered_.erase(peer);
  lose(peer, cause);
}

void Engine::lose(JobRank peer, const std::string& cause) {
  now_.lost.insert(peer);
  if (fail_if_suspended()) return;
  const auto ended = ended_by_leaving_.find(peer);
  if (ended != ended_by_leaving_.end()) {
    // This rank is the cause of the peer's end. It may still need the peer's data.
    if (in_flight_ > 0) suspects_.push_back({me(), ended->second, now_.turned_at});
  } else if (!said_goodbye_.contains(peer)) {
    const Nanoseconds due = now_.turned_at + (world_set().is_neighbour(peer) ? 0 : kHearsay);
    suspects_.push_back({peer, world_.failed(peer.value(), cause), due});
  } else if (executor_.needs(peer)) {
    misses(peer);
  }
}

// Fails this rank if its peers went on without it. It may have been suspended within this turn.
bool Engine::fail_if_suspended() {
  const Nanoseconds duration = suspension_.turn(clock_.now(), peer_timeout_);
  if (duration > 0) fail(me(), world_.was_suspended(duration, peer_timeout_));
  return duration > 0;
}

void Engine::misses(JobRank peer) {
  if (!suspects_.empty()) return;  // the world ends soon, with the cause
  const auto goodbye = said_goodbye_.find(peer);
  if (goodbye != said_goodbye_.end() && is_ahead_of(goodbye->second)) {
    // This rank has started a decision by a plan, and the peer never joins it. An earlier departure
    // may be the cause.
    const Status gone = now_.departed.ok() ? departure(goodbye->second) : now_.departed;
    fail(gone.detail().rank, gone);
  } else {
    // The peer waits for its peers before it goes, but only for a limited time. This rank was too
    // slow.
    fail(peer, world_.failed(peer.value(), kLeftTooEarly));
  }
}

// Whether this rank has started, by a plan, a decision that the leaving rank will never start.
bool Engine::is_ahead_of(const LeavingMessage& message) const {
  return std::any_of(sets_.begin(), sets_.end(), [&](const auto& set) {
    const auto started = message.started.find(set->number());
    return started != message.started.end() && set->agreement().accepted() > started->second;
  });
}

// A lost peer may have ended because of another rank, whose failure is not known here yet. The
// neighbours of that rank in the control tree report it. Nothing is executed meanwhile.
bool Engine::judge_suspects() {
  const auto due = std::find_if(suspects_.begin(), suspects_.end(), [&](const Suspect& suspect) {
    return now_.turned_at >= suspect.due;
  });
  if (due == suspects_.end()) return false;
  const Suspect suspect = std::move(*due);
  suspects_.erase(due);  // a leaving rank with nothing in flight continues without it
  fail(suspect.rank, suspect.status);
  return true;
}

// The first failure wins. From here on nothing is executed. A peer that receives the failure knows
// that this rank no longer reads its memory. This rank waits shortly for the same message of all
// peers. Afterwards no peer uses the memory of this rank's callers.
void Engine::fail(JobRank rank, Status status) {
  // An operation that has ended may still have work on a GPU, whose failure must not be lost.
  const bool needs_nobody = now_.leaving && in_flight_ == 0 && executor_.status().ok();
  if (!now_.goes_on() || ended_) return;
  if (needs_nobody) return name_late_failure({rank, std::move(status)});
  now_.failure = std::move(status);
  failed_at_ = clock_.now();
  executor_.compute().drop_waiting();
  submissions_.close(now_.failure);
  if (!tolerates_loss_of(rank)) {
    log_.error(now_.failure.message());
  } else if (!world_.is_server(world_.rank)) {  // servers report it themselves
    const int there = workers_without(rank);
    std::string_view what = now_.failure.message();
    if (what.ends_with('.')) what.remove_suffix(1);
    log_.warning(cat(what, ". Training goes on with ", there, there == 1 ? " worker" : " workers",
                     "; collectives, which need all of them, end with this error."));
  }
  for (int number = 0; number < world_.size(); ++number) {
    const JobRank peer(number);
    // Includes peers that are about to be connected. They must learn the cause, and not blame this
    // rank.
    const bool wanted = std::any_of(sets_.begin(), sets_.end(), [&](const auto& set) {
      return set->is_neighbour(peer) || set->requested_peers().contains(peer);
    });
    if (peer != me() && (wanted || transport_.is_connected(number))) {
      post(peer, 0, FailureMessage{rank, now_.failure});
    }
  }
}

// A leaving rank with nothing in flight has its results. No call follows that could raise the
// error.
void Engine::name_late_failure(FailureMessage failure) {
  if (late_failure_) return;
  late_failure_ = std::move(failure);
  late_failure_due_ = std::min(clock_.now() + kLateFailure,
                               left_at_ + goodbye_limit(peer_timeout_) - kFailureFlush);
  std::string_view what = late_failure_->status.message();
  if (what.ends_with('.')) what.remove_suffix(1);
  log_.warning(
      cat(what, ". All operations of this rank had ended, and their results are complete."));
}

// A peer without a farewell may wait for the failed rank, without a connection to it. It would
// blame the first rank that ends.
bool Engine::post_late_failure() {
  if (now_.turned_at < late_failure_due_) return false;
  late_failure_due_ = kNever;
  for (JobRank peer : goodbyes_unanswered_) post(peer, 0, *late_failure_);
  return true;
}

void Engine::blame(const Status& failure) {
  const JobRank rank = failure.detail().rank;
  const bool has_left = !now_.departed.ok() && now_.departed.detail().rank == rank;
  if (!has_left) fail(rank, failure);  // otherwise all ranks know it from that rank
}

// Asynchronous servers, and their workers, continue without a worker that failed.
bool Engine::tolerates_loss_of(JobRank rank) const {
  return world_.servers > 0 && world_.members[world_.workers()].stores && rank != me() &&
         !world_.is_server(rank.value());
}

int Engine::workers_without(JobRank lost) const {
  int count = 0;
  for (int rank = 0; rank < world_.workers(); ++rank) {
    count += JobRank(rank) != lost && !departed_.contains(JobRank(rank)) ? 1 : 0;
  }
  return count;
}

// Other ranks run the same batch, so they cannot continue without this rank.
void Engine::fail_this_rank(const Status& status) {
  fail(me(), at_fault(world_, me(), status.message()));
}

void Engine::broken_protocol(JobRank sender, const std::string& what) {
  fail(sender, at_fault(world_, sender, cat("it sent ", what)));
}

bool Engine::end_failed_world() {
  if (ended_) return false;
  bool quiet = outbox_.empty() && transport_.flushed();
  for (int peer = 0; peer < world_.size(); ++peer) {
    quiet = quiet && (!transport_.is_connected(peer) || silent_.contains(JobRank(peer)));
  }
  if (quiet || clock_.now() - failed_at_ >= kFailureFlush) end();
  return ended_;
}

Status Engine::departure(const LeavingMessage& message) const {
  const int rank = message.rank.value();
  const Member& member = world_.members[rank];
  const std::string why = message.cause.empty() ? "it called shutdown()" : message.cause;
  const std::string_view loss = world_.is_server(rank) ? world_.loss(rank) : "";
  const std::string_view cure =
      !loss.empty() ? loss
      : world_.is_server(rank)
          ? ": it takes no more pushes. Start the job again."
          : " while this rank still submits. If it printed no error, give every rank the same "
            "number of steps, or call join() where the data ends.";
  return {Code::rank_failed,
          cat(world_.describe(rank), " has left the job (", why, ")", cure),
          {message.rank, member.host, cat("left the job: ", why), "", {message.rank}}};
}

void Engine::depart(const LeavingMessage& message) {
  for (const auto& set : sets_) {
    const auto started = message.started.find(set->number());
    if (started != message.started.end()) set->agreement().depart_from(started->second);
  }
  // In a failed world, undecided operations end with the failure.
  if (!now_.goes_on() || !now_.departed.ok() || now_.leaving) return;
  first_departure_ = message;
  now_.departed = departure(message);
  const bool is_felt = std::any_of(
      sets_.begin(), sets_.end(), [](const auto& set) { return set->agreement().has_undecided(); });
  if (is_felt) log_.error(now_.departed.message());
  complete_undecided(now_.departed);
}

Status Engine::start_failure() const {
  if (!now_.goes_on() || now_.departed.ok()) return now_.failure;
  const ErrorDetail& gone = now_.departed.detail();
  return world_.failed(gone.rank.value(), gone.cause);
}

void Engine::complete_undecided(const Status& status) {
  end_held(held_.take_all(), status);
  for (const auto& set : sets_) {
    set->agreement().end_undecided(status);
    set->agreement()
        .end_caught_up();  // operations held for the end of a plan, which may never come
  }
}

bool Engine::end_if_deserted() {
  if (now_.departed.ok() || now_.leaving) return false;
  const bool is_deserted =
      std::any_of(sets_.begin(), sets_.end(), [](const auto& set) { return set->is_deserted(); });
  if (!is_deserted) return false;
  fail(now_.departed.detail().rank, now_.departed);
  return true;
}

bool Engine::are_workers_gone() const {
  for (int rank = 0; rank < world_.workers(); ++rank) {
    if (!departed_.contains(JobRank(rank))) return false;
  }
  return true;
}

bool Engine::have_workers_left() const { return are_workers_gone() && goodbyes_to_answer_.empty(); }

void Engine::leave(const std::string& said) {
  // a failure has informed all ranks already
  if (now_.leaving || ended_ || !now_.goes_on()) return;
  const std::string cause = said.size() <= kCauseBytesMax ? said
                                                          : cat(said.substr(0, kCauseBytesMax),
                                                                " ... (", said.size(), " bytes)");
  // Workers cannot continue without a server, and other servers learn its end only this way.
  if (world_.is_server(world_.rank) && started() && !are_workers_gone()) {
    return fail(me(), departure({me(), false, {}, cause}));
  }
  now_.leaving = true;
  left_at_ = clock_.now();
  submissions_.close({Code::shutdown, "rdmacoll was shut down; call init() to start again."});
  take_submissions();
  LeavingMessage leaving{me(), false, {}, cause};
  for (const auto& set : sets_) {
    leaving.unfinished = leaving.unfinished || in_flight(*set) > 0;
    leaving.started[set->number()] = set->agreement().started();
  }
  post_neighbours(leaving, JobRank());
  // A rank that leaves because of another one names that one, whose own message may arrive later.
  LeavingMessage first = now_.departed.ok() ? leaving : first_departure_;
  for (const auto& set : sets_) {
    first.started[set->number()] =
        std::min(set->agreement().started(), set->agreement().departed_from());
  }
  goodbye_ = {std::move(first)};
  for (int peer = 0; peer < world_.size(); ++peer) {
    if (peer == world_.rank || !transport_.is_connected(peer)) continue;
    post(JobRank(peer), 0, goodbye_);
    goodbyes_unanswered_.emplace(peer);
  }
  complete_undecided({Code::shutdown, "rdmacoll was shut down while the operation was pending."});
}

// Eager data has left this rank, but may not have a receive at the peer yet. It would be lost with
// the connection. So a leaving rank waits for a FarewellMessage of each peer.
bool Engine::answer_goodbyes() {
  const std::size_t waiting = goodbyes_to_answer_.size();
  std::erase_if(goodbyes_to_answer_, [&](JobRank peer) {
    if (!has_ended_all(said_goodbye_[peer])) return false;
    transport_.stop_views(peer.value());
    post(peer, 0, FarewellMessage{});
    return true;
  });
  return goodbyes_to_answer_.size() < waiting;
}

bool Engine::has_ended_all(const LeavingMessage& message) const {
  return std::all_of(sets_.begin(), sets_.end(), [&](const auto& set) {
    const auto started = message.started.find(set->number());
    return started == message.started.end() || set->has_ended_all(started->second);
  });
}

bool Engine::may_end() const {
  return ended_ || (outbox_.empty() && executor_.idle() && goodbyes_unanswered_.empty() &&
                    transport_.flushed() &&
                    std::all_of(sets_.begin(), sets_.end(),
                                [](const auto& set) { return set->agreement().may_end(); }));
}

void Engine::end() {
  if (ended_) return;
  if (now_.leaving && now_.goes_on() && in_flight_ == 0 && !suspects_.empty()) {
    name_late_failure({suspects_.front().rank, suspects_.front().status});
  }
  ended_ = true;
  const Status status =
      !now_.goes_on()
          ? now_.failure
          : Status(Code::shutdown, "rdmacoll was shut down while the operation was in flight.");
  submissions_.close(status);
  executor_.halt();
  for (int peer = 0; peer < world_.size(); ++peer) {
    if (peer == world_.rank) continue;
    transport_.stop_views(peer);
    transport_.fail(peer);
  }
  // With a suspect, or with ranks that have not caught up, a sum is not reliable.
  executor_.take_finished(finished_);
  for (const OperationRef& operation : std::exchange(finished_, {})) {
    const ProcessSet& set = set_of(*operation);
    const bool is_good = suspects_.empty() && set.agreement().is_final(*operation);
    set_of(*operation).end(operation, is_good ? now_.failure : status);
  }
  for (const OperationRef& operation : executor_.abandon()) {
    set_of(*operation).end(operation, status);
  }
  do {  // an operation may have waited behind each of them
    take_submissions();
    end_held(held_.take_all(), status);
    for (const auto& set : sets_) set->agreement().abandon(status);
  } while (submissions_.waiting());
  outbox_.clear();
  timeline_.reset();
}

}  // namespace rdmacoll
