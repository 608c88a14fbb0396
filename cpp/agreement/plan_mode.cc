// How ranks enter a plan, follow it, and return to the log.
#include "agreement/plan_mode.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "operation/can_run_again.h"

namespace rdmacoll {
namespace {

// How long an operation waits for the operations that the plan has before it, although there is
// room for them.
constexpr Nanoseconds kPlanTimeout = 100 * kMillisecond;
// If nothing has ended for this long, a rank may be missing. Only the log can find out which.
constexpr Nanoseconds kPlanSilence = kSecond;

}  // namespace

PlanMode::PlanMode(const Parts& parts, const DecisionLog::Rules& rules, uint64_t repeats,
                   Log output)
    : parts_(parts),
      output_(output),
      plan_(parts.world, parts.table),
      recurrence_(parts.table, parts.tree.is_root() && parts.world.size() > 1 ? repeats : 0),
      looks_again_(rules.looks_again && parts.tree.is_root()),
      timed_bytes_least_(rules.tuning.trial_bytes),
      drift_(rules.tuning.drift_window, rules.tuning.drift_sums) {}

// ---- into a plan ----

void PlanMode::start() {
  const Situation& now = parts_.now;
  const bool is_settled = catch_up_.empty() && parts_.queue.incomplete().empty() &&
                          !parts_.readiness.has_joined() &&
                          !parts_.readiness.is_late(now.turned_at, kPlanSilence);
  if (parts_.world.size() == 1 || !is_settled || !now.departed.ok() || now.leaving) return;
  std::optional<Recurrence::Period> period = recurrence_.find();
  if (!period) return;
  const PlanMessage message{plan_.era() + 1, parts_.log.accepted(), period->next_number,
                            std::move(period->decisions)};
  parts_.tree.post_down(message);
  begin(message);
}

void PlanMode::handle(SetRank, PlanMessage& message) {
  parts_.tree.post_down(message);
  begin(message);
}

// Readiness of the log's era without a decision is void. The plan decides these operations, or all
// ranks send their readiness again when it ends.
void PlanMode::begin(const PlanMessage& message) {
  if (message.start != parts_.log.accepted() || !parts_.queue.incomplete().empty() ||
      !plan_.begin(message)) {
    parts_.host.broken_protocol(parts_.tree.above(), cat("a plan from decision ", message.start,
                                                         " on, which cannot be followed"));
    return;
  }
  parts_.readiness.forget();
  parts_.log.withdraw_offers();
  note_progress();
  parts_.names.forget_unheard();
  if (looks_again_ && parts_.log.has_trials()) drift_.begin(message.start, timed_bytes(message));
  const Operations& undecided = parts_.undecided.all();
  for (const auto& [key, operation] : undecided) operation->state.has_said_names = false;
  for (const auto& [key, operation] : undecided) {
    if (is_unplanned(*operation)) return freeze();
  }
}

// The bytes of each decision, or 0: it is no sum, or too small for trials.
std::vector<uint64_t> PlanMode::timed_bytes(const PlanMessage& message) const {
  std::vector<uint64_t> timed;
  for (const PlannedDecision& decision : message.decisions) {
    uint64_t bytes = 0;
    for (const PlannedUnit& unit : decision.units) {
      Descriptor descriptor;
      const bool is_known = decode_descriptor(*parts_.table.text(unit.descriptor), descriptor);
      if (is_known && descriptor.kind == Kind::allreduce) bytes += descriptor.bytes();
    }
    timed.push_back(bytes >= timed_bytes_least_ ? bytes : 0);
  }
  return timed;
}

// ---- along the plan ----

// Sums on GPUs have no trials. `first`: of the decision's operations.
void PlanMode::started(uint64_t sequence, const Operation& first) {
  if (drift_.is_timed(sequence) && first.request.order == nullptr) {
    drift_.started(sequence, parts_.host.time());
  }
  note_progress();
}

void PlanMode::submit(const OperationRef& operation) {
  parts_.undecided.add(operation);
  if (!is_in_log()) {
    if (is_unplanned(*operation)) freeze();
    return;
  }
  if (operation->request.kind == Kind::join) {
    join_waits_ = true;
    return announce_join();
  }
  catch_up_.announced(key_of(*operation));
  parts_.undecided.announce(operation);
}

// A rank joins after it has announced all its operations.
void PlanMode::announce_join() {
  if (!join_waits_ || !is_in_log() || !to_replay_.empty()) return;
  join_waits_ = false;
  parts_.undecided.announce_join();
}

const KeyedDecision* PlanMode::take_planned(Operation& operation) {
  if (!is_active() || !parts_.undecided.empty() || !parts_.queue.is_empty()) return nullptr;
  const uint64_t sequence = parts_.log.accepted();
  const KeyedDecision& next = plan_.decision(sequence);
  if (!plan_.is_about(next, operation) || parts_.names.has_new(operation)) return nullptr;
  operation.state.sequence = sequence;
  parts_.queue.accept(next.decision);
  started(sequence, operation);
  return &next;
}

bool PlanMode::follow() {
  if (!is_active() || parts_.undecided.empty() || !parts_.queue.complete().empty() ||
      !parts_.now.goes_on()) {
    return false;
  }
  const uint64_t sequence = parts_.log.accepted();
  const KeyedDecision& next = plan_.decision(sequence);
  if (!parts_.queue.take_operations(next)) return false;
  parts_.queue.accept(next.decision);
  started(sequence, *parts_.queue.complete().back().operations.front());
  return true;
}

void PlanMode::check(bool has_room) {
  if (!is_active() || parts_.now.turned_at - checked_at_ < kCheckInterval) return;
  checked_at_ = parts_.now.turned_at;
  if (is_stuck(has_room) || drift_.has_drifted()) freeze();
}

bool PlanMode::is_stuck(bool has_room) const {
  const Nanoseconds idle = parts_.now.turned_at - moved_at_;
  if (idle >= kPlanSilence) return true;
  return parts_.queue.complete().empty() && has_room && idle >= kPlanTimeout &&
         !parts_.undecided.empty();
}

Nanoseconds PlanMode::next_deadline(bool is_busy) const {
  return is_active() && is_busy ? parts_.now.turned_at + kPlanTimeout : kNever;
}

// ---- out of the plan ----

void PlanMode::freeze(SetRank except) {
  if (!is_active() || !parts_.now.departed.ok()) return;
  plan_.freeze();
  parts_.tree.post_around(FreezeMessage{plan_.era()}, except);
  const uint64_t accepted = parts_.log.accepted();
  report(accepted, accepted, std::min(kept(), accepted));
}

// From the decision of this sequence on, the operations of all that this rank has taken can run
// again.
uint64_t PlanMode::kept() const {
  uint64_t kept = parts_.host.kept();
  for (const CompleteDecision& decision : parts_.queue.complete()) {
    const bool is_kept =
        std::ranges::all_of(decision.operations, [this](const OperationRef& operation) {
          return can_run_again(*operation, parts_.world.rank());
        });
    if (!is_kept) kept = std::max(kept, decision.sequence + 1);
  }
  return kept;
}

void PlanMode::handle(SetRank sender, FreezeMessage& message) {
  if (message.era == plan_.era()) freeze(sender);
}

void PlanMode::handle(SetRank sender, FrozenMessage& message) {
  if (!parts_.now.departed.ok()) return;  // a rank has left: no more collectives in this world
  if (message.era != plan_.era() || plan_.phase() != Plan::Phase::frozen) {
    parts_.host.broken_protocol(sender, "a report about a plan that it cannot know");
    return;
  }
  report(message.least, message.furthest, message.kept);
}

void PlanMode::report(uint64_t least, uint64_t furthest, uint64_t kept) {
  if (!plan_.report(least, furthest, kept)) return;
  if (!parts_.tree.is_root()) {
    parts_.tree.post_up(FrozenMessage{plan_.era(), plan_.least(), plan_.furthest(), plan_.kept()});
    return;
  }
  const ResumeMessage message{plan_.era() + 1, plan_.least(), plan_.furthest(), plan_.kept()};
  parts_.tree.post_down(message);
  resume(message);
}

void PlanMode::handle(SetRank, ResumeMessage& message) {
  parts_.tree.post_down(message);
  resume(message);
}

// Leaves the plan. Each rank announces its operations again: those of decisions that not all ranks
// have started, and all undecided ones. The former are decided already, unless they run for
// nothing. Their readiness is gathered so that a missing rank is named.
void PlanMode::resume(const ResumeMessage& message) {
  plan_.resume(message.era);
  after_plan_ = 0;
  resumed_at_ = message.furthest;
  recurrence_.plan_ended(plan_.period(), message.furthest - plan_.start());
  drift_.end();
  if (drift_.has_drifted()) {
    output_.info("large sums take another time than before, so their ways are tried again");
    parts_.log.look_again();
    drift_.forget();
  }
  expect_all(message);
  parts_.log.go_on();
  for (const auto& [key, operation] : parts_.undecided.all()) catch_up_.announced(key);
  parts_.undecided.announce_all();
  join_waits_ = true;
  announce_join();
  end_caught_up();
  parts_.queue.gather();
}

}  // namespace rdmacoll
