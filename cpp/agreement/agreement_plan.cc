// How ranks enter a plan, follow it, return to the log, and catch up with each other.
#include <algorithm>
#include <utility>

#include "agreement/agreement.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// How long an operation waits for the operations that the plan has before it, although there is
// room for them.
constexpr Nanoseconds kPlanPatience = 100 * kMillisecond;
// If nothing has ended for this long, a rank may be missing. Only the log can find out which.
constexpr Nanoseconds kPlanSilence = kSecond;

}  // namespace

// ---- into a plan ----

void Agreement::start_plan() {
  const bool is_settled = catch_up_.empty() && agreed_.empty() && !readiness_.has_joined() &&
                          !readiness_.is_late(now_.turned_at, kPlanSilence);
  if (world_.size() == 1 || !is_settled || !now_.departed.ok() || now_.leaving) return;
  std::optional<Recurrence::Period> period = recurrence_.find();
  if (!period) return;
  const PlanMessage message{plan_.era() + 1, log_.accepted(), period->next_number,
                            std::move(period->decisions)};
  tree_.post_down(message);
  begin_plan(message);
}

void Agreement::handle(int, PlanMessage& message) {
  tree_.post_down(message);
  begin_plan(message);
}

// Readiness of the log's era without a decision is void. The plan decides these operations, or all
// ranks send their readiness again when it ends.
void Agreement::begin_plan(const PlanMessage& message) {
  if (message.start != log_.accepted() || !agreed_.empty() || !plan_.begin(message)) {
    host_.broken_protocol(tree_.above(), cat("a plan from decision ", message.start,
                                             " on, which cannot be followed"));
    return;
  }
  readiness_.forget();
  log_.withdraw_offers();
  note_progress();
  names_.forget_unheard();
  for (const auto& [key, operation] : undecided_) operation->state.has_said_names = false;
  for (const auto& [key, operation] : undecided_) {
    if (is_unplanned(*operation)) return freeze();
  }
}

// ---- along the plan ----

bool Agreement::follow_plan() {
  if (!is_in_plan() || undecided_.empty() || !decided_.empty() || !now_.goes_on()) return false;
  const Agreed& next = plan_.decision(log_.accepted());
  if (!take_operations(next)) return false;
  accept(next.decision);
  note_progress();
  return true;
}

void Agreement::check_plan(bool has_room) {
  if (!is_in_plan() || now_.turned_at - plan_checked_at_ < kCheckInterval) return;
  plan_checked_at_ = now_.turned_at;
  if (is_plan_stuck(has_room)) freeze();
}

bool Agreement::is_plan_stuck(bool has_room) const {
  const Nanoseconds idle = now_.turned_at - moved_at_;
  if (idle >= kPlanSilence) return true;
  return decided_.empty() && has_room && idle >= kPlanPatience && !undecided_.empty();
}

Nanoseconds Agreement::next_deadline(bool is_busy) const {
  return std::min(readiness_.next_deadline(),
                  is_in_plan() && is_busy ? now_.turned_at + kPlanPatience : kNever);
}

// ---- leaving the plan ----

void Agreement::freeze(int except) {
  if (!is_in_plan() || !now_.departed.ok()) return;
  plan_.freeze();
  tree_.post_around(FreezeMessage{plan_.era()}, except);
  report_frozen(log_.accepted(), log_.accepted());
}

void Agreement::handle(int sender, FreezeMessage& message) {
  if (message.era == plan_.era()) freeze(sender);
}

void Agreement::handle(int sender, FrozenMessage& message) {
  if (!now_.departed.ok()) return;  // a rank has left: no more collectives in this world
  if (message.era != plan_.era() || plan_.phase() != PlanMode::Phase::frozen) {
    host_.broken_protocol(sender, "a report about a plan that it cannot know");
    return;
  }
  report_frozen(message.least, message.furthest);
}

void Agreement::report_frozen(uint64_t least, uint64_t furthest) {
  if (!plan_.report(least, furthest)) return;
  if (!tree_.is_root()) {
    tree_.post_up(FrozenMessage{plan_.era(), plan_.least(), plan_.furthest()});
    return;
  }
  const ResumeMessage message{plan_.era() + 1, plan_.least(), plan_.furthest()};
  tree_.post_down(message);
  resume(message);
}

void Agreement::handle(int, ResumeMessage& message) {
  tree_.post_down(message);
  resume(message);
}

// Leaves the plan. Each rank announces its operations again: those of decisions that not all ranks
// have started, and all undecided ones. The former are decided already. Their readiness is gathered
// so that a missing rank is named.
void Agreement::resume(const ResumeMessage& message) {
  const uint64_t mine = log_.accepted();
  plan_.resume(message.era);
  recurrence_.plan_ended(plan_.period(), message.furthest - plan_.start());
  for (uint64_t sequence = message.least; sequence < message.furthest; ++sequence) {
    const Agreed& agreed = plan_.decision(sequence);
    catch_up_.expect(agreed, sequence < mine);
    ++caught_up_;
    if (sequence >= mine) {
      const bool accepted = accept(agreed.decision);
      RC_ASSERT(accepted);
      agreed_.push_back(agreed);
      continue;
    }
    for (const DecisionUnit& unit : agreed.decision.units) {
      ReadyRecord record{unit.descriptor, unit.iteration, world_.rank, tree_.is_leaf(), {}};
      if (!agreed.own_rows.empty()) record.rows.emplace_back(world_.rank, agreed.own_rows);
      announce(std::move(record));
    }
  }
  log_.go_on();
  for (const auto& [key, operation] : undecided_) {
    if (operation->request.kind != Kind::join) announce(operation);
  }
  announce_join();  // after the operations that this rank submitted before
  end_caught_up();
  gather();
}

// ---- decisions that only some ranks have started ----

void Agreement::unit_caught_up(const UnitKey& key) {
  const std::optional<uint64_t> sequence = catch_up_.unit_caught_up(key);
  if (!sequence || !tree_.is_root()) return;
  tree_.post_down(CaughtUpMessage{*sequence});
  catch_up_.caught_up(*sequence);
  end_caught_up();
}

void Agreement::handle(int, CaughtUpMessage& message) {
  tree_.post_down(message);
  catch_up_.caught_up(message.sequence);
  end_caught_up();
}

// ---- decisions that some ranks have started with other rows ----

void Agreement::handle(int, AnewMessage& message) {
  tree_.post_down(message);
  take_anew(message.sequence);
}

// Ranks that have started the decision finish it. The other ranks take part with zeros.
void Agreement::take_anew(uint64_t sequence) {
  const UnitKey* named = catch_up_.unit_of(sequence);
  RC_ASSERT(named != nullptr, cat("decision ", sequence));
  ++anew_;
  const UnitKey key = *named;
  const auto behind = std::find_if(agreed_.begin(), agreed_.end(), [&](const Agreed& agreed) {
    return agreed.decision.sequence == sequence;
  });
  const bool is_started = behind == agreed_.end();
  if (!is_started && behind->keys.size() != 1) {
    return host_.broken_protocol(tree_.above(),
                                 cat("decision ", sequence, " is of several operations"));
  }
  if (is_started) {
    again_.insert(key);
  } else {
    add_placeholder(*behind, 0);
  }
  catch_up_.caught_up(sequence);
  end_caught_up();
  const auto mine = undecided_.find(key);
  if (!is_started && mine != undecided_.end()) announce(mine->second);
  gather();
}

// While a plan ends, an operation may end here with the zeros of a rank that already knows the new
// state. Control messages and data travel independently. After a departure no rank sends such
// zeros.
bool Agreement::may_be_behind() const {
  return plan_.phase() == PlanMode::Phase::frozen && now_.departed.ok() && !now_.leaving;
}

// Applies the verdict to an operation that some ranks have started. They finish it, and report the
// verdict as its result. A rank without the operation, or with a different one, sends zeros.
// Returns whether the operation runs on this rank.
bool Agreement::judge_started(const UnitKey& key, const Status& verdict) {
  for (const Agreed& agreed : agreed_) {
    for (std::size_t i = 0; i < agreed.keys.size(); ++i) {
      if (agreed.keys[i] != key) continue;
      add_placeholder(agreed, i);
      return false;
    }
  }
  judged_[{catch_up_.sequence_of(key), key}] = verdict;
  return true;
}

}  // namespace rdmacoll
