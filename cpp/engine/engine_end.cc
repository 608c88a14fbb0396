// How an engine ends: a peer fails, a rank leaves, or this one does.
#include <algorithm>

#include "base/text.h"
#include "engine/engine.h"

namespace rdmacoll {
namespace {

// How long the news of a failure may take to leave this process, before its peers are let go.
constexpr Nanoseconds kFailureFlush = 200 * kMillisecond;
// How long the control tree may take to say why a peer that is not our neighbour there has ended.
constexpr Nanoseconds kHearsay = 100 * kMillisecond;
// A connection that is lost so soon after this process was stopped was closed by a peer that had
// waited for it.
constexpr Nanoseconds kResumed = kSecond;
// What user code says when it fails may be of any length.
constexpr std::size_t kCauseBytesMax = 1000;
constexpr const char* kLeftTooEarly = "left before this rank had its data";

}  // namespace

void Engine::peer_failed(int peer, const std::string& cause) {
  silent_.insert(peer);
  lost_.insert(peer);
  outbox_.erase(peer);
  to_answer_.erase(peer);
  unanswered_.erase(peer);
  const Member& member = world_.members[peer];
  if (gap_ > 0 && clock_.now() - resumed_at_ < kResumed) {
    fail_myself(
        {Code::failed, cat("it did not run for ", gap_ / kMillisecond / 1000.0,
                           " s (stopped, or without a processor), and the others went on")});
  } else if (!said_goodbye_.contains(peer)) {
    const bool is_neighbour =
        std::find(neighbours_.begin(), neighbours_.end(), peer) != neighbours_.end();
    const Nanoseconds due = turned_at_ + (is_neighbour ? 0 : kHearsay);
    suspects_.push_back({peer, rank_failed(peer, member.host, member.pid, cause), due});
  } else if (executor_.needs(peer) && decision_log_.accepted() > said_goodbye_[peer].started) {
    // Started by a plan, and it will never join in; perhaps since another one had left before.
    const Status gone = departed_.ok() ? departure(said_goodbye_[peer]) : departed_;
    fail(gone.detail().rank, gone);
  } else if (executor_.needs(peer)) {
    // It waits for its peers before it goes, but not for ever: this rank was too slow for it.
    fail(peer, rank_failed(peer, member.host, member.pid, kLeftTooEarly));
  }
}

// A peer that is lost may have ended because of another rank, of which we have not heard yet. Its
// neighbours in the control tree have, and say so; nothing is executed meanwhile.
bool Engine::judge_suspects() {
  const auto due = std::find_if(suspects_.begin(), suspects_.end(),
                                [&](const Suspect& suspect) { return turned_at_ >= suspect.due; });
  if (due == suspects_.end()) return false;
  const Suspect suspect = std::move(*due);
  suspects_.erase(due);  // who leaves, and has nothing in flight, goes on without it
  fail(suspect.rank, suspect.status);
  return true;
}

// The first sentence wins. From here on nothing is executed: whoever hears it from us knows that we
// read no memory of his any more, and we wait (for a moment) to hear the same from all the others,
// since only then is nobody using our callers' memory.
void Engine::fail(int rank, Status status) {
  if (!failure_.ok() || ended_ || (leaving_ && in_flight_ == 0)) return;
  failure_ = std::move(status);
  failed_at_ = clock_.now();
  submissions_.close(failure_);
  log_.error(failure_.message());
  for (int peer = 0; peer < world_.size(); ++peer) {
    // Also who is about to be connected: it must not take our end for the cause.
    const bool wanted =
        std::find(neighbours_.begin(), neighbours_.end(), peer) != neighbours_.end() ||
        planner_.asked().contains(peer);
    if (peer != world_.rank && (wanted || transport_.is_connected(peer))) {
      post(peer, FailureMessage{rank, failure_});
    }
  }
}

// Others run the same batch: there is no going on without us.
void Engine::fail_myself(const Status& status) {
  const Member& self = world_.members[world_.rank];
  fail(world_.rank, rank_failed(world_.rank, self.host, self.pid, status.message()));
}

bool Engine::end_failed_world() {
  if (ended_) return false;
  bool quiet = outbox_.empty() && transport_.flushed();
  for (int peer = 0; peer < world_.size(); ++peer) {
    quiet = quiet && (!transport_.is_connected(peer) || silent_.contains(peer));
  }
  if (quiet || clock_.now() - failed_at_ >= kFailureFlush) end();
  return ended_;
}

Status Engine::departure(const LeavingMessage& message) const {
  const int rank = message.rank;
  const Member& member = world_.members[rank];
  const std::string why = message.cause.empty() ? "it called shutdown()" : message.cause;
  return {Code::rank_failed,
          cat(world_.describe(rank), " has left the job (", why,
              ") while this rank still submits. If it printed no error, give every rank the same "
              "number of steps."),
          {rank, member.host, cat("left the job: ", why), "", {rank}}};
}

void Engine::depart(const LeavingMessage& message) {
  departed_from_ = std::min(departed_from_, message.started);
  if (!departed_.ok() || leaving_) return;
  first_gone_ = message;
  departed_ = departure(message);
  if (!undecided_.empty()) log_.error(departed_.message());
  complete_undecided(departed_);
}

Status Engine::start_failure() const {
  if (!failure_.ok() || departed_.ok()) return failure_;
  const ErrorDetail& gone = departed_.detail();
  return rank_failed(gone.rank, gone.host, world_.members[gone.rank].pid, gone.cause);
}

// It waits for a connection to a rank that is gone.
void Engine::miss_peer_of(const Decided& decided) {
  for (int peer : planner_.peers_of(decided)) {
    if (!lost_.contains(peer)) continue;
    const Member& member = world_.members[peer];
    return fail(peer, rank_failed(peer, member.host, member.pid, kLeftTooEarly));
  }
}

Status Engine::missing_peer(const Batch& batch) const {
  const Program* program = batch.recipe->program;
  if (program == nullptr || lost_.empty()) return {};
  for (const auto& [peer, traffic] : program->traffic) {
    if (lost_.contains(peer)) return {Code::failed, cat(world_.describe(peer), " has left")};
  }
  return {};
}

void Engine::complete_undecided(const Status& status) {
  for (const auto& [key, operation] : std::exchange(undecided_, {})) complete(operation, status);
}

// What this rank has started by the plan and a rank that has left had not: it cannot end. Nor can
// what others have started and this rank's caller will not submit any more.
bool Engine::end_deserted() {
  if (departed_.ok() || leaving_) return false;
  const bool is_deserted = !agreed_.empty() || decision_log_.accepted() > departed_from_;
  if (!is_deserted || executor_.runs_before(departed_from_)) return false;
  fail(departed_.detail().rank, departed_);
  return true;
}

void Engine::leave(const std::string& said) {
  if (leaving_ || ended_ || !failure_.ok()) return;  // a failure has said it all
  leaving_ = true;
  const std::string cause = said.size() <= kCauseBytesMax ? said
                                                          : cat(said.substr(0, kCauseBytesMax),
                                                                " ... (", said.size(), " bytes)");
  submissions_.close({Code::shutdown, "rdmacoll was shut down; call init() to start again."});
  take_submissions();
  const uint64_t started = decision_log_.accepted() - agreed_.size();
  const bool is_unfinished = in_flight_ > stand_ins_in_flight_;
  const LeavingMessage leaving{world_.rank, is_unfinished, started, cause};
  post_neighbours(leaving, -1);
  // Who goes because another one has gone names that one: the other's own word may come later.
  LeavingMessage first = departed_.ok() ? leaving : first_gone_;
  first.started = std::min(started, departed_from_);
  for (int peer = 0; peer < world_.size(); ++peer) {
    if (peer == world_.rank || !transport_.is_connected(peer)) continue;
    post(peer, GoodbyeMessage{first});
    unanswered_.insert(peer);
  }
  complete_undecided({Code::shutdown, "rdmacoll was shut down while the operation was pending."});
}

// What was sent eagerly is gone from here, and may have no receive yet where it has come to: it
// would be lost with the connection. So whoever leaves waits for a word of its peers.
bool Engine::answer_goodbyes() {
  const std::size_t waiting = to_answer_.size();
  std::erase_if(to_answer_, [&](int peer) {
    if (!has_ended_all(said_goodbye_[peer].started)) return false;
    post(peer, FarewellMessage{});
    return true;
  });
  return to_answer_.size() < waiting;
}

bool Engine::has_ended_all(uint64_t before) const {
  const auto waits = [&](const auto& decided) { return decided.sequence < before; };
  return decision_log_.accepted() >= before && !executor_.runs_before(before) &&
         std::none_of(decided_.begin(), decided_.end(), waits) &&
         std::none_of(agreed_.begin(), agreed_.end(),
                      [&](const Agreed& agreed) { return waits(agreed.decision); });
}

bool Engine::may_end() const {
  return ended_ || (outbox_.empty() && executor_.idle() && decided_.empty() && held_.empty() &&
                    unanswered_.empty() && transport_.flushed());
}

void Engine::end() {
  if (ended_) return;
  ended_ = true;
  const Status status =
      !failure_.ok()
          ? failure_
          : Status(Code::shutdown, "rdmacoll was shut down while the operation was in flight.");
  submissions_.close(status);
  executor_.halt();
  for (int peer = 0; peer < world_.size(); ++peer) {
    if (peer != world_.rank) transport_.fail(peer);
  }
  // With a suspect, or with ranks that have not joined, its sum is nothing to rely on.
  executor_.take_finished(finished_);
  for (const OperationRef& operation : std::exchange(finished_, {})) {
    const bool is_good = suspects_.empty() && !catch_up_.waits(operation->sequence);
    complete(operation, is_good ? failure_ : status);
  }
  for (const OperationRef& operation : executor_.abandon()) complete(operation, status);
  for (const OperationRef& operation : std::exchange(held_, {})) complete(operation, status);
  for (const auto& [key, operation] : std::exchange(stand_ins_, {})) complete(operation, status);
  for (const Decided& decided : std::exchange(decided_, {})) {
    for (const OperationRef& operation : decided.operations) complete(operation, status);
  }
  take_submissions();
  complete_undecided(status);
  outbox_.clear();
}

}  // namespace rdmacoll
