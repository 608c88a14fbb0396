// How ranks catch up with each other after a plan.
#include <utility>

#include "agreement/plan_mode.h"
#include "base/text.h"

namespace rdmacoll {

// ---- decisions that only some ranks have started ----

void PlanMode::expect_all(const ResumeMessage& message) {
  const uint64_t mine = parts_.log.accepted();
  for (uint64_t sequence = message.least; sequence < message.furthest; ++sequence) {
    const KeyedDecision& keyed = plan_.decision(sequence);
    ++caught_up_;
    if (sequence >= mine) {
      parts_.queue.accept(keyed.decision);
      parts_.queue.add(keyed);
    }
    // A rank that leaves has said which decisions it takes part in, and gives no zeros for others.
    const bool takes_part = sequence < mine || !parts_.now.leaving;
    if (sequence >= message.kept && takes_part) {
      run_for_nothing(keyed, sequence < mine);
      continue;
    }
    catch_up_.expect(keyed, sequence < mine);
    if (sequence >= mine) continue;
    for (const DecisionUnit& unit : keyed.decision.units) {
      const SetWorld& world = parts_.world;
      ReadyRecord record{unit.descriptor, unit.iteration, world.rank(), parts_.tree.is_leaf(), {}};
      if (!keyed.own_rows.empty()) record.rows.emplace_back(world.rank(), keyed.own_rows);
      parts_.undecided.announce(record);
    }
  }
}

// Ranks that have started the decision run it to its end, and drop the result. The other ranks take
// part with zeros. The log decides its operations again, from the callers' inputs and one by one.
// So a caller may wait for one of them, or for any other operation, before it submits the next one.
void PlanMode::run_for_nothing(const KeyedDecision& keyed, bool is_started) {
  ++replayed_;
  for (std::size_t i = 0; i < keyed.keys.size() && parts_.now.goes_on(); ++i) {
    if (is_started) {
      to_replay_.insert(keyed.keys[i]);
    } else {
      parts_.queue.add_placeholder(keyed, i);
    }
  }
}

bool PlanMode::take_ready(const ReadyUnit& unit) {
  if (!catch_up_.names(unit.key)) return false;
  const uint64_t sequence = catch_up_.sequence_of(unit.key);
  if (plan_.rows_of(sequence) == unit.rows) {
    unit_caught_up(unit.key);
  } else {
    parts_.tree.post_down(ReplayMessage{sequence});
    parts_.readiness.await_all(unit.key);
    replay(sequence);
  }
  return true;
}

bool PlanMode::holds_up_others() const {
  const bool is_still = parts_.now.turned_at - moved_at_ >= kSecond;
  return !catch_up_.empty() && is_still &&
         (parts_.log.waiting() || after_plan_ > 0 || catch_up_.waits_for_parts());
}

void PlanMode::unit_caught_up(const UnitKey& key) {
  const std::optional<uint64_t> sequence = catch_up_.unit_caught_up(key);
  if (!sequence || !parts_.tree.is_root()) return;
  parts_.tree.post_down(CaughtUpMessage{*sequence});
  caught_up(*sequence);
}

void PlanMode::handle(SetRank, CaughtUpMessage& message) {
  parts_.tree.post_down(message);
  caught_up(message.sequence);
}

void PlanMode::caught_up(uint64_t sequence) {
  catch_up_.caught_up(sequence);
  end_caught_up();
}

// ---- decisions that some ranks have started with other rows ----

void PlanMode::handle(SetRank, ReplayMessage& message) {
  parts_.tree.post_down(message);
  replay(message.sequence);
}

// Ranks that have started the decision finish it. The other ranks take part with zeros.
void PlanMode::replay(uint64_t sequence) {
  const UnitKey* named = catch_up_.unit_of(sequence);
  RC_ASSERT(named != nullptr, cat("decision ", sequence));
  ++replayed_;
  const UnitKey key = *named;
  const KeyedDecision* const behind = parts_.queue.find_incomplete(sequence);
  if (behind != nullptr && behind->keys.size() != 1) {
    return parts_.host.broken_protocol(parts_.tree.above(),
                                       cat("decision ", sequence, " is of several operations"));
  }
  if (behind == nullptr) {
    to_replay_.insert(key);
  } else {
    parts_.queue.add_placeholder(*behind, 0);
  }
  caught_up(sequence);
  const auto mine = parts_.undecided.all().find(key);
  if (behind != nullptr && mine != parts_.undecided.all().end()) {
    parts_.undecided.announce(mine->second);
  }
  parts_.queue.gather();
}

// ---- verdicts ----

bool PlanMode::judge(const UnitKey& key, const Status& verdict, bool is_answer) {
  if (catch_up_.names(key)) {
    const bool is_started = judge_started(key, verdict);
    // The root has judged before it heard of the operation that runs here. Its later verdict must
    // not hit the next operation of that name.
    if (is_started && !is_answer && catch_up_.has_announced(key)) unanswered_.insert(key);
    if (is_started && parts_.tree.is_root()) output_.error(verdict.message());
    unit_caught_up(key);
    if (is_started) return true;
  }
  return is_answer && unanswered_.erase(key) > 0;
}

// Applies the verdict to an operation that some ranks have started. They finish it, and report the
// verdict as its result. A rank without the operation, or with a different one, sends zeros.
// Returns whether the operation runs on this rank.
bool PlanMode::judge_started(const UnitKey& key, const Status& verdict) {
  for (const KeyedDecision& keyed : parts_.queue.incomplete()) {
    for (std::size_t i = 0; i < keyed.keys.size(); ++i) {
      if (keyed.keys[i] != key) continue;
      parts_.queue.add_placeholder(keyed, i);
      return false;
    }
  }
  judged_[{catch_up_.sequence_of(key), key}] = verdict;
  return true;
}

// ---- operations that have run ----

// While a plan ends, an operation may end here with the zeros of a rank that already knows the new
// state. Control messages and data travel independently. After a departure no rank sends such
// zeros.
bool PlanMode::may_be_behind() const {
  return plan_.phase() == Plan::Phase::frozen && parts_.now.departed.ok() && !parts_.now.leaving;
}

bool PlanMode::settle(OperationRef& operation, Status& status) {
  const Situation& now = parts_.now;
  note_progress();
  if (now.goes_on() && (may_be_behind() || catch_up_.waits(operation->state.sequence))) {
    held_.push_back(std::move(operation));
    return false;
  }
  status = now.failure;
  if (!to_replay_.empty() && now.goes_on() && !is_final(*operation)) {
    to_replay_.erase(key_of(*operation));
    if (now.departed.ok() && !now.leaving) {
      submit(operation);
      announce_join();
      return false;
    }
    status = now.leaving
                 ? Status{Code::shutdown, "rdmacoll was shut down while the operation was pending."}
                 : now.departed;
    return true;
  }
  if (!judged_.empty()) {
    const auto verdict = judged_.extract({operation->state.sequence, key_of(*operation)});
    if (status.ok() && !verdict.empty()) status = verdict.mapped();
  }
  return true;
}

bool PlanMode::is_final(const Operation& ended) const {
  return !may_be_behind() && !catch_up_.waits(ended.state.sequence) &&
         (ended.is_placeholder || !to_replay_.contains(key_of(ended)));
}

bool PlanMode::ends_well(const Operation& operation) const {
  return is_final(operation) &&
         (judged_.empty() || !judged_.contains({operation.state.sequence, key_of(operation)}));
}

void PlanMode::ended(const Operation& operation) {
  const uint64_t sequence = operation.state.sequence;
  if (after_plan_ > 0 && sequence >= resumed_at_) --after_plan_;
  if (drift_.is_running(sequence)) drift_.ended(sequence, parts_.host.time());
  if (!operation.is_placeholder && !to_replay_.empty()) to_replay_.erase(key_of(operation));
}

void PlanMode::end_caught_up() {
  for (OperationRef& operation : std::exchange(held_, {})) {
    Status status;
    if (settle(operation, status)) parts_.host.end(operation, status);
  }
}

void PlanMode::abandon(const Status& status) {
  for (const OperationRef& operation : std::exchange(held_, {})) {
    parts_.host.end(operation, status);
  }
}

}  // namespace rdmacoll
