// The messages of the log, verdicts, joins, the end, and the state.
#include <algorithm>
#include <utility>

#include "agreement/agreement.h"
#include "base/text.h"

namespace rdmacoll {

// ---- messages ----

void Agreement::handle(int sender, ReadyMessage& message) {
  if (message.era != plan_.era()) return;  // sent before the sender knew of the plan, or of its end
  for (const ReadyRecord& record : message.records) {
    if (!readiness_.add(record, now_.turned_at)) {
      host_.broken_protocol(sender, "readiness for an operation that it cannot have");
      return;
    }
  }
}

void Agreement::handle(int, InternMessage& message) {
  const bool is_next = table_.add(message.id, message.bytes);
  RC_ASSERT(is_next, cat("number ", message.id));
  tree_.post_down(message);
}

void Agreement::handle(int sender, Decision& decision) {
  if (tree_.is_server()) return serve(std::move(decision));
  if (!tree_.post_decision(decision)) {
    return host_.broken_protocol(sender, "numbers of rows that are not its ranks'");
  }
  obey(agreed_of(std::move(decision)));
}

// ---- verdicts ----

void Agreement::handle(int, VerdictMessage& message) {
  tree_.post_down(message);
  apply(message);
}

void Agreement::apply(const VerdictMessage& verdict) {
  const UnitKey key{verdict.name, verdict.iteration};
  if (key == join_key()) readiness_.part();
  const bool is_answer =
      std::find(verdict.ranks.begin(), verdict.ranks.end(), world_.rank) != verdict.ranks.end();
  if (catch_up_.names(key)) {
    const bool is_started = judge_started(key, verdict.status);
    // The root has judged before it heard of the operation that runs here. Its later verdict must
    // not hit the next operation of that name.
    if (is_started && !is_answer && catch_up_.has_announced(key)) unanswered_.insert(key);
    if (is_started && tree_.is_root()) output_.error(verdict.status.message());
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
  if (tree_.is_root() && operation->request.refusal.empty()) {
    output_.error(verdict.status.message());
  }
  host_.end(operation, verdict.status);
}

// ---- joins ----

// Root: ends the join after all operations are decided that were ready before the last rank joined.
bool Agreement::end_join() {
  if (!tree_.is_root() || !readiness_.have_all_joined() || readiness_.has_news() ||
      readiness_.awaits_all() || log_.waiting() || !catch_up_.empty()) {
    return false;
  }
  const AllJoinedMessage message = readiness_.all_joined();
  recurrence_.forget();  // the numbers of unnamed operations may change
  tree_.post_down(message);
  apply(message);
  return true;
}

void Agreement::handle(int, AllJoinedMessage& message) {
  tree_.post_down(message);
  apply(message);
}

void Agreement::apply(const AllJoinedMessage& message) {
  const auto found = undecided_.find(join_key());
  if (found == undecided_.end()) {
    host_.broken_protocol(0, "the end of a join that this rank has not begun");
    return;
  }
  const OperationRef join = std::move(found->second);
  undecided_.erase(found);
  readiness_.part();
  host_.end_join(join, message);
}

// ---- the end ----

void Agreement::end_undecided(const Status& status) {
  for (const auto& [key, operation] : std::exchange(undecided_, {})) host_.end(operation, status);
}

void Agreement::abandon(const Status& status) {
  for (const OperationRef& operation : std::exchange(held_, {})) host_.end(operation, status);
  for (const auto& [key, operation] : std::exchange(placeholders_, {}))
    host_.end(operation, status);
  for (const Decided& decided : std::exchange(decided_, {})) {
    for (const OperationRef& operation : decided.operations) host_.end(operation, status);
  }
  end_undecided(status);
}

bool Agreement::has_begun_all(uint64_t before) const {
  const auto waits = [&](const auto& decision) { return decision.sequence < before; };
  return accepted() >= before && std::none_of(decided_.begin(), decided_.end(), waits) &&
         std::none_of(agreed_.begin(), agreed_.end(),
                      [&](const Agreed& agreed) { return waits(agreed.decision); });
}

// ---- state ----

std::string Agreement::state() const {
  std::string text =
      cat("  ", decided_.size(), " decided and not started, ", log_.accepted(), " decisions\n");
  for (const auto& [key, operation] : undecided_) {
    text += cat("  ", operation->label(), " waits for its decision\n");
  }
  if (!tree_.is_root() && !undecided_.empty()) {
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
