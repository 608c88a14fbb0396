// Plan mode: how ranks begin to follow a plan, and how they go back to the log.
#include <algorithm>

#include "base/text.h"
#include "engine/engine.h"

namespace rdmacoll {
namespace {

// Nothing has ended for so long: perhaps a rank is missing, and only the log can say which.
constexpr Nanoseconds kPlanSilence = kSecond;

}  // namespace

// ---- into a plan ----

void Engine::start_plan() {
  const bool is_settled =
      catch_up_.empty() && agreed_.empty() && !readiness_.is_late(turned_at_, kPlanSilence);
  if (world_.size() == 1 || !is_settled || !departed_.ok() || leaving_) return;
  std::optional<Recurrence::Period> period = recurrence_.find();
  if (!period) return;
  const PlanMessage message{plan_.era() + 1, decision_log_.accepted(), period->next_number,
                            std::move(period->decisions)};
  post_down(message);
  begin_plan(message);
}

void Engine::handle(int, PlanMessage& message) {
  post_down(message);
  begin_plan(message);
}

// What was said in the log's era and is not decided yet is void: the plan decides it, or its end
// makes everybody say it again.
void Engine::begin_plan(const PlanMessage& message) {
  if (message.start != decision_log_.accepted() || !agreed_.empty() || !plan_.begin(message)) {
    broken_protocol(0,
                    cat("a plan from decision ", message.start, " on, which cannot be followed"));
    return;
  }
  readiness_.forget();
  decision_log_.withdraw_offers();
  plan_moved_at_ = turned_at_;
  for (const auto& [key, operation] : undecided_) {
    if (!plan_.fits(*operation)) return freeze();
  }
}

// ---- along the plan ----

bool Engine::follow_plan() {
  if (plan_.phase() != PlanMode::Phase::plan) return false;
  bool moved = false;
  while (!undecided_.empty() && decided_.empty() && failure_.ok() &&
         executor_.has_room(decision_log_.accepted())) {
    const Agreed& next = plan_.decision(decision_log_.accepted());
    if (!take_operations(next)) break;
    decision_log_.accept(next.decision);
    start_batches();
    plan_moved_at_ = turned_at_;
    moved = true;
  }
  if (in_flight_ > 0 && turned_at_ - plan_checked_at_ >= kCheckInterval) {
    plan_checked_at_ = turned_at_;
    if (is_plan_stuck()) freeze();
  }
  return moved;
}

// The next operation of a plan goes straight into its batch, where nothing else waits.
bool Engine::starts_at_once(const OperationRef& operation) {
  const uint64_t sequence = decision_log_.accepted();
  const bool waits = !undecided_.empty() || !decided_.empty() || !agreed_.empty() ||
                     !stand_ins_.empty() || !executor_.has_room(sequence);
  if (waits || plan_.phase() != PlanMode::Phase::plan) return false;
  const Agreed& next = plan_.decision(sequence);
  if (!plan_.is_about(next, *operation)) return false;
  operation->sequence = sequence;
  decision_log_.accept(next.decision);
  plan_moved_at_ = turned_at_;
  Decided decided{sequence,   next.decision.algorithm, next.decision.segment_bytes, {}, 0,
                  {operation}};
  if (!planner_.connect(decided) || !start_batch(decided)) decided_.push_back(std::move(decided));
  return true;
}

bool Engine::is_plan_stuck() {
  if (turned_at_ - plan_moved_at_ >= kPlanSilence) return true;
  if (!decided_.empty() || !executor_.has_room(decision_log_.accepted())) return false;
  return turned_at_ - plan_moved_at_ >= kPlanPatience && !undecided_.empty();
}

// ---- out of the plan ----

void Engine::freeze(int except) {
  if (plan_.phase() != PlanMode::Phase::plan || !departed_.ok()) return;
  plan_.freeze();
  post_neighbours(FreezeMessage{plan_.era()}, except);
  report_frozen(decision_log_.accepted(), decision_log_.accepted());
}

void Engine::handle(int peer, FreezeMessage& message) {
  if (message.era == plan_.era()) freeze(peer);
}

void Engine::handle(int peer, FrozenMessage& message) {
  if (!departed_.ok()) return;  // no more collectives in this world
  if (message.era != plan_.era() || plan_.phase() != PlanMode::Phase::frozen) {
    broken_protocol(peer, "a report about a plan that it cannot know");
    return;
  }
  report_frozen(message.least, message.furthest);
}

void Engine::report_frozen(uint64_t least, uint64_t furthest) {
  if (!plan_.report(least, furthest)) return;
  if (!is_root()) {
    post(neighbours_.front(), FrozenMessage{plan_.era(), plan_.least(), plan_.furthest()});
    return;
  }
  const ResumeMessage message{plan_.era() + 1, plan_.least(), plan_.furthest()};
  post_down(message);
  resume(message);
}

void Engine::handle(int peer, ResumeMessage& message) {
  if (plan_.phase() != PlanMode::Phase::frozen || message.era != plan_.era() + 1) {
    broken_protocol(peer, "the end of a plan that is not at its end");
    return;
  }
  post_down(message);
  resume(message);
}

// Everybody says again what it has: of the decisions that not all have started, and of all that is
// undecided. The first are decided already; they are gathered so that whoever is missing is named.
void Engine::resume(const ResumeMessage& message) {
  const uint64_t mine = decision_log_.accepted();
  plan_.resume(message.era);
  recurrence_.plan_ended(plan_.period(), message.furthest - plan_.start());
  for (uint64_t sequence = message.least; sequence < message.furthest; ++sequence) {
    const Agreed& agreed = plan_.decision(sequence);
    catch_up_.expect(agreed);
    ++caught_up_;
    if (sequence >= mine) {
      const bool accepted = decision_log_.accept(agreed.decision);
      RC_ASSERT(accepted);
      agreed_.push_back(agreed);
      continue;
    }
    for (const DecisionUnit& unit : agreed.decision.units) {
      announce({unit.descriptor, unit.iteration, world_.rank, is_leaf(), {}});
    }
  }
  decision_log_.go_on();
  for (const auto& [key, operation] : undecided_) announce(operation);
  gather_operations();
}

// ---- what some have started and others have not ----

void Engine::unit_joined(const UnitKey& key) {
  const std::optional<uint64_t> sequence = catch_up_.unit_joined(key);
  if (!sequence || !is_root()) return;
  post_down(JoinedMessage{*sequence});
  catch_up_.joined(*sequence);
  complete_joined();
}

void Engine::handle(int, JoinedMessage& message) {
  post_down(message);
  catch_up_.joined(message.sequence);
  complete_joined();
}

void Engine::complete_joined() {
  for (OperationRef& operation : std::exchange(held_, {})) report(std::move(operation));
}

// The verdict of an operation that some ranks have started already. They end it, with the verdict
// as its result; where it is missing, or is another one, zeros take its place. True: it is running
// here.
bool Engine::judge_started(const UnitKey& key, const Status& verdict) {
  for (const Agreed& agreed : agreed_) {
    for (std::size_t i = 0; i < agreed.keys.size(); ++i) {
      if (agreed.keys[i] != key) continue;
      stand_in(agreed.decision.units[i], key);
      return false;
    }
  }
  judged_[key] = verdict;
  return true;
}

void Engine::stand_in(const DecisionUnit& unit, const UnitKey& key) {
  Descriptor descriptor;
  const bool readable = decode_descriptor(*table_.resolve(unit.descriptor), descriptor);
  RC_ASSERT(readable);
  Request request;
  request.kind = descriptor.kind;
  request.dtype = descriptor.dtype;
  request.op = descriptor.op;
  request.prescale = descriptor.prescale;
  request.postscale = descriptor.postscale;
  request.name = descriptor.name;
  request.iteration = key.iteration;
  for (const std::vector<int64_t>& shape : descriptor.shapes) {
    request.tensors.push_back({nullptr, nullptr, shape, ""});
  }
  const uint64_t bytes = request.bytes();
  std::unique_ptr<std::byte[]> zeros(new (std::nothrow) std::byte[bytes]());
  if (zeros == nullptr) {
    fail_myself({Code::failed, cat("no memory of ", bytes_text(bytes), " to take part in '",
                                   key.name, "' with zeros.")});
    return;
  }
  std::byte* at = zeros.get();
  for (TensorRef& tensor : request.tensors) {
    tensor.input = tensor.output = at;
    at += static_cast<std::size_t>(tensor.elements()) * size_of(request.dtype);
  }
  auto operation = std::make_shared<Operation>(std::move(request));
  operation->results.push_back({{}, bytes, std::move(zeros)});
  operation->stands_in = true;
  if (in_flight_++ == 0) busy_since_ = turned_at_;
  ++stand_ins_in_flight_;
  stand_ins_[key] = std::move(operation);
}

}  // namespace rdmacoll
