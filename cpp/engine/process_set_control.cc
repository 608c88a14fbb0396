// A set's messages, its end, and its state.
#include <algorithm>

#include "base/text.h"
#include "engine/process_set.h"
#include "operation/cut.h"

namespace rdmacoll {

// ---- messages of members ----

void ProcessSet::handle(int peer, ReadyMessage& message) {
  if (message.era != plan_.era()) return;  // sent before the sender knew of the plan, or of its end
  for (const ReadyRecord& record : message.records) {
    if (!readiness_.add(record, now_.turned_at)) {
      host_.broken_protocol(peer, "readiness for an operation that it cannot have");
      return;
    }
  }
}

void ProcessSet::handle(int, InternMessage& message) {
  const bool is_next = table_.add(message.id, message.bytes);
  RC_ASSERT(is_next, cat("number ", message.id));
  post_down(message);
}

void ProcessSet::handle(int peer, Decision& decision) {
  if (is_server()) return serve(std::move(decision));
  if (!pass_down(decision)) {
    return host_.broken_protocol(peer, "numbers of rows that are not its ranks'");
  }
  obey(agreed_of(std::move(decision)));
}

void ProcessSet::handle(int, VerdictMessage& message) {
  post_down(message);
  apply(message);
}

void ProcessSet::apply(const VerdictMessage& verdict) {
  const UnitKey key{verdict.name, verdict.iteration};
  if (verdict.name.empty() && verdict.iteration == kJoinIteration) part();
  const bool is_answer =
      std::find(verdict.ranks.begin(), verdict.ranks.end(), world_.rank) != verdict.ranks.end();
  if (catch_up_.names(key)) {
    const bool is_started = judge_started(key, verdict.status);
    // The root has judged before it heard of the operation that runs here. Its later verdict must
    // not hit the next operation of that name.
    if (is_started && !is_answer && catch_up_.has_announced(key)) unanswered_.insert(key);
    if (is_started && is_root()) log_.error(verdict.status.message());
    unit_caught_up(key);
    if (is_started) return;
  }
  // Not submitted here yet: a verdict follows once it is.
  if (!is_answer || unanswered_.erase(key) > 0) return;
  const auto found = undecided_.find(key);
  if (found == undecided_.end()) return;
  const OperationRef operation = std::move(found->second);
  undecided_.erase(found);
  // The other ranks only raise the error, and the root logs it once. A refused caller has received
  // it already.
  if (is_root() && operation->request.refusal.empty()) log_.error(verdict.status.message());
  complete(operation, verdict.status);
}

void ProcessSet::post_down(const Message& message) {
  for (int peer : children_) post(peer, message);
}

// Sends the decision to the children. For an alltoall, each child receives the row counts of its
// subtree. Returns false if a row of the table has the wrong length.
bool ProcessSet::pass_down(const Decision& decision) {
  if (decision.most_rows == 0) {
    post_down(decision);
    return true;
  }
  const std::vector<int> mine = tree_subtree(world_.rank, world_.size());
  Decision narrowed = decision;
  for (int child : tree_children(world_.rank, world_.size())) {
    const std::vector<int> below = tree_subtree(child, world_.size());
    if (!columns_of(decision.rows, mine, below, narrowed.rows)) return false;
    post(ranks_[child], narrowed);
  }
  return true;
}

void ProcessSet::post_neighbours(const Message& message, int except) {
  for (int peer : neighbours_) {
    if (peer != except && !job_.is_server(peer)) post(peer, message);
  }
}

// ---- the end ----

// The decision waits for a connection to a rank that has ended.
void ProcessSet::miss_peer_of(const Decided& decided) {
  for (int peer : planner_.peers_of(decided)) {
    if (!now_.lost.contains(peer)) continue;
    return host_.fail(peer, job_.failed(peer, kLeftTooEarly));
  }
}

Status ProcessSet::missing_peer(const Batch& batch) const {
  const Program* program = batch.recipe->program;
  if (program == nullptr || now_.lost.empty()) return {};
  for (const auto& [peer, out, in] : program->traffic) {
    if (now_.lost.contains(peer)) return {Code::failed, cat(job_.describe(peer), " has left")};
  }
  return {};
}

bool ProcessSet::is_deserted() const {
  if (now_.departed.ok() || now_.leaving) return false;
  const bool is_missed = !agreed_.empty() || decision_log_.accepted() > departed_from_;
  return is_missed && !executor_.runs_before(lanes_, departed_from_);
}

void ProcessSet::complete_undecided(const Status& status) {
  for (const auto& [key, operation] : std::exchange(undecided_, {})) complete(operation, status);
}

void ProcessSet::abandon(const Status& status) {
  for (const OperationRef& operation : std::exchange(held_, {})) complete(operation, status);
  for (const auto& [key, operation] : std::exchange(stand_ins_, {})) complete(operation, status);
  for (const Decided& decided : std::exchange(decided_, {})) {
    for (const OperationRef& operation : decided.operations) complete(operation, status);
  }
  complete_undecided(status);
}

bool ProcessSet::has_ended_all(uint64_t before) const {
  const auto waits = [&](const auto& decided) { return decided.sequence < before; };
  return decision_log_.accepted() >= before && !executor_.runs_before(lanes_, before) &&
         std::none_of(decided_.begin(), decided_.end(), waits) &&
         std::none_of(agreed_.begin(), agreed_.end(),
                      [&](const Agreed& agreed) { return waits(agreed.decision); });
}

bool ProcessSet::is_drained() const {
  return agreed_.empty() && decided_.empty() && held_.empty() && executor_.idle(lanes_);
}

// ---- state ----

std::string ProcessSet::state() const {
  std::string text;
  if (number_ != 0) {
    text += cat("  process set ", number_, " (ranks ", join(ranks_, ", "), "): ", in_flight_,
                " operations in flight\n");
  }
  text += cat("  ", decided_.size(), " decided and not started, ", decision_log_.accepted(),
              " decisions\n");
  for (const auto& [key, operation] : undecided_) {
    text += cat("  ", operation->label(), " waits for its decision\n");
  }
  if (!is_root() && !undecided_.empty()) {
    text += cat("  which ranks are missing is known to ", world_.describe(0),
                ": send SIGUSR1 to that process\n");
  }
  constexpr std::string_view kPhases[] = {"by the log", "by a plan", "leaving a plan"};
  text += cat("  era ", plan_.era(), ", ", kPhases[static_cast<int>(plan_.phase())], ": ",
              agreed_.size(), " decisions wait for operations, ", held_.size(),
              " operations for other ranks\n");
  return text + readiness_.state();
}

}  // namespace rdmacoll
