// Plan mode: how ranks enter a plan, follow it, and return to the log.
#include <algorithm>

#include "base/text.h"
#include "engine/process_set.h"
#include "operation/stand_in.h"

namespace rdmacoll {
namespace {

// If nothing has ended for this long, a rank may be missing. Only the log can find out which.
constexpr Nanoseconds kPlanSilence = kSecond;

}  // namespace

// ---- into a plan ----

void ProcessSet::start_plan() {
  const bool is_settled = catch_up_.empty() && agreed_.empty() && !readiness_.has_joined() &&
                          !readiness_.is_late(now_.turned_at, kPlanSilence);
  if (world_.size() == 1 || !is_settled || !now_.departed.ok() || now_.leaving) return;
  std::optional<Recurrence::Period> period = recurrence_.find();
  if (!period) return;
  const PlanMessage message{plan_.era() + 1, decision_log_.accepted(), period->next_number,
                            std::move(period->decisions)};
  post_down(message);
  begin_plan(message);
}

void ProcessSet::handle(int, PlanMessage& message) {
  post_down(message);
  begin_plan(message);
}

// Readiness of the log's era without a decision is void. The plan decides these operations, or all
// ranks send their readiness again when it ends.
void ProcessSet::begin_plan(const PlanMessage& message) {
  if (message.start != decision_log_.accepted() || !agreed_.empty() || !plan_.begin(message)) {
    host_.broken_protocol(
        above(), cat("a plan from decision ", message.start, " on, which cannot be followed"));
    return;
  }
  readiness_.forget();
  decision_log_.withdraw_offers();
  plan_moved_at_ = now_.turned_at;
  forget_unheard_names();
  for (const auto& [key, operation] : undecided_) {
    if (!plan_.fits(*operation) || has_new_names(*operation)) return freeze();
  }
}

// ---- along the plan ----

bool ProcessSet::follow_plan() {
  if (plan_.phase() != PlanMode::Phase::plan) return false;
  bool moved = false;
  while (!undecided_.empty() && decided_.empty() && now_.goes_on() &&
         executor_.has_room(lanes_, decision_log_.accepted())) {
    const Agreed& next = plan_.decision(decision_log_.accepted());
    if (!take_operations(next)) break;
    accept(next.decision);
    start_batches();
    plan_moved_at_ = now_.turned_at;
    moved = true;
  }
  if (in_flight_ > 0 && now_.turned_at - plan_checked_at_ >= kCheckInterval) {
    plan_checked_at_ = now_.turned_at;
    if (is_plan_stuck()) freeze();
  }
  return moved;
}

// Starts an operation at once if it is the next one of the plan, and nothing else waits.
bool ProcessSet::starts_at_once(const OperationRef& operation) {
  const uint64_t sequence = decision_log_.accepted();
  const bool waits = !undecided_.empty() || !decided_.empty() || !agreed_.empty() ||
                     !stand_ins_.empty() || !executor_.has_room(lanes_, sequence);
  if (waits || plan_.phase() != PlanMode::Phase::plan) return false;
  const Agreed& next = plan_.decision(sequence);
  if (!plan_.is_about(next, *operation) || has_new_names(*operation)) return false;
  operation->sequence = sequence;
  accept(next.decision);
  plan_moved_at_ = now_.turned_at;
  const bool is_again = now_.lost.empty() &&
                        planner_.does_again(*operation, next.decision, next.rows, next.is_planned);
  if (is_again) {
    const Status status = executor_.start(lanes_, sequence, operation);
    if (!status.ok()) host_.fail_myself(status);
    return true;
  }
  Decided decided{sequence,   next.decision.algorithm, next.decision.segment_bytes,
                  next.rows,  next.decision.most_rows, next.is_planned,
                  {operation}};
  const bool is_started = planner_.connect(decided) && find_place(decided) && start_batch(decided);
  if (!is_started) decided_.push_back(std::move(decided));
  return true;
}

bool ProcessSet::is_plan_stuck() {
  if (now_.turned_at - plan_moved_at_ >= kPlanSilence) return true;
  if (!decided_.empty() || !executor_.has_room(lanes_, decision_log_.accepted())) return false;
  return now_.turned_at - plan_moved_at_ >= kPlanPatience && !undecided_.empty();
}

Nanoseconds ProcessSet::next_deadline() const {
  const bool is_planned = plan_.phase() == PlanMode::Phase::plan && in_flight_ > 0;
  return std::min(readiness_.next_deadline(), is_planned ? now_.turned_at + kPlanPatience : kNever);
}

// ---- leaving the plan ----

void ProcessSet::freeze(int except) {
  if (plan_.phase() != PlanMode::Phase::plan || !now_.departed.ok()) return;
  plan_.freeze();
  post_neighbours(FreezeMessage{plan_.era()}, except);
  report_frozen(decision_log_.accepted(), decision_log_.accepted());
}

void ProcessSet::handle(int peer, FreezeMessage& message) {
  if (message.era == plan_.era()) freeze(peer);
}

void ProcessSet::handle(int peer, FrozenMessage& message) {
  if (!now_.departed.ok()) return;  // a rank has left: no more collectives in this world
  if (message.era != plan_.era() || plan_.phase() != PlanMode::Phase::frozen) {
    host_.broken_protocol(peer, "a report about a plan that it cannot know");
    return;
  }
  report_frozen(message.least, message.furthest);
}

void ProcessSet::report_frozen(uint64_t least, uint64_t furthest) {
  if (!plan_.report(least, furthest)) return;
  if (!is_root()) {
    post(neighbours_.front(), FrozenMessage{plan_.era(), plan_.least(), plan_.furthest()});
    return;
  }
  const ResumeMessage message{plan_.era() + 1, plan_.least(), plan_.furthest()};
  post_down(message);
  resume(message);
}

void ProcessSet::handle(int, ResumeMessage& message) {
  post_down(message);
  resume(message);
}

// Leaves the plan. Each rank announces its operations again: those of decisions that not all ranks
// have started, and all undecided ones. The former are decided already. Their readiness is gathered
// so that a missing rank is named.
void ProcessSet::resume(const ResumeMessage& message) {
  const uint64_t mine = decision_log_.accepted();
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
      ReadyRecord record{unit.descriptor, unit.iteration, world_.rank, is_leaf(), {}};
      if (!agreed.own_rows.empty()) record.rows.emplace_back(world_.rank, agreed.own_rows);
      announce(std::move(record));
    }
  }
  decision_log_.go_on();
  for (const auto& [key, operation] : undecided_) {
    if (operation->request.kind != Kind::join) announce(operation);
  }
  announce_join();  // after the operations that this rank submitted before
  complete_caught_up();
  gather_operations();
}

// ---- decisions that only some ranks have started ----

void ProcessSet::unit_caught_up(const UnitKey& key) {
  const std::optional<uint64_t> sequence = catch_up_.unit_caught_up(key);
  if (!sequence || !is_root()) return;
  post_down(CaughtUpMessage{*sequence});
  catch_up_.caught_up(*sequence);
  complete_caught_up();
}

void ProcessSet::handle(int, CaughtUpMessage& message) {
  post_down(message);
  catch_up_.caught_up(message.sequence);
  complete_caught_up();
}

// ---- decisions that some ranks have started with other rows ----

void ProcessSet::handle(int, AnewMessage& message) {
  post_down(message);
  take_anew(message.sequence);
}

// Ranks that have started the decision finish it. The other ranks take part with zeros.
void ProcessSet::take_anew(uint64_t sequence) {
  const UnitKey* named = catch_up_.unit_of(sequence);
  if (named == nullptr) {
    return host_.broken_protocol(above(), cat("decision ", sequence, " is not one to take anew"));
  }
  ++anew_;
  const UnitKey key = *named;
  const auto behind = std::find_if(agreed_.begin(), agreed_.end(), [&](const Agreed& agreed) {
    return agreed.decision.sequence == sequence;
  });
  const bool is_started = behind == agreed_.end();
  if (!is_started && behind->keys.size() != 1) {
    return host_.broken_protocol(above(), cat("decision ", sequence, " is of several operations"));
  }
  if (is_started) {
    again_.insert(key);
  } else {
    stand_in(*behind, 0);
  }
  catch_up_.caught_up(sequence);
  complete_caught_up();
  const auto mine = undecided_.find(key);
  if (!is_started && mine != undecided_.end()) announce(mine->second);
  gather_operations();
}

void ProcessSet::say_again(OperationRef operation) {
  again_.erase({operation->request.name, operation->request.iteration});
  if (now_.departed.ok() && !now_.leaving) return await_decision(operation);
  const Status shutdown{Code::shutdown, "rdmacoll was shut down while the operation was pending."};
  complete(operation, now_.leaving ? shutdown : now_.departed);
}

bool ProcessSet::is_final(const Operation& ended) const {
  return !may_be_behind() && !catch_up_.waits(ended.sequence) &&
         (ended.stands_in || !again_.contains({ended.request.name, ended.request.iteration}));
}

// While a plan ends, an operation may end here with the zeros of a rank that already knows the new
// state. Control messages and data travel independently. After a departure no rank sends such
// zeros.
bool ProcessSet::may_be_behind() const {
  return plan_.phase() == PlanMode::Phase::frozen && now_.departed.ok() && !now_.leaving;
}

void ProcessSet::complete_caught_up() {
  for (OperationRef& operation : std::exchange(held_, {})) report(std::move(operation));
}

// Applies the verdict to an operation that some ranks have started. They finish it, and report the
// verdict as its result. A rank without the operation, or with a different one, sends zeros.
// Returns whether the operation runs on this rank.
bool ProcessSet::judge_started(const UnitKey& key, const Status& verdict) {
  for (const Agreed& agreed : agreed_) {
    for (std::size_t i = 0; i < agreed.keys.size(); ++i) {
      if (agreed.keys[i] != key) continue;
      stand_in(agreed, i);
      return false;
    }
  }
  judged_[key] = verdict;
  return true;
}

void ProcessSet::stand_in(const Agreed& agreed, std::size_t unit) {
  const UnitKey& key = agreed.keys[unit];
  Descriptor descriptor;
  const std::string* described = table_.resolve(agreed.decision.units[unit].descriptor);
  if (described == nullptr || !decode_descriptor(*described, descriptor)) {
    return host_.broken_protocol(above(), "a decision about what nobody has described");
  }
  if (is_server() && descriptor.kind != Kind::allreduce) {
    return host_.broken_protocol(above(), "a decision for servers about no sum");
  }
  if (!is_complete(descriptor, agreed.own_rows, world_.rank, world_.size())) {
    return host_.broken_protocol(above(), "a decision without the rows of a rank that it is about");
  }
  Request request = request_like(descriptor, agreed.own_rows, world_.rank, world_.size());
  request.iteration = key.iteration;
  request.set = number_;
  Operation::Result zeros;  // a server sends nothing, not even zeros
  if (!is_server()) {
    zeros = zeros_of(request.bytes());
    if (zeros.memory == nullptr) {
      host_.fail_myself({Code::failed, cat("no memory of ", bytes_text(request.bytes()),
                                           " to take part in '", key.name, "' with zeros.")});
      return;
    }
    lay_in(request, zeros.memory.get());
  }
  auto operation = std::make_shared<Operation>(std::move(request));
  operation->zeros = std::move(zeros);
  operation->stands_in = true;
  ++in_flight_;
  ++stand_ins_in_flight_;
  host_.begin(operation);
  stand_ins_[key] = std::move(operation);
}

}  // namespace rdmacoll
