#include "agreeing_rank.h"

#include <algorithm>
#include <type_traits>

#include "operation/can_run_again.h"
#include "set_worlds.h"

namespace rdmacoll {
namespace {

constexpr int kJoinStep = 1 << 20;  // the step of a phase's join

Agreement::Rules rules_of_script(const AgreementScript& script) {
  Agreement::Rules rules;
  rules.plan_repeats = script.plan_repeats;
  rules.checks_names = true;
  rules.log.servers = script.servers;
  rules.log.tries_ways = script.tries_ways;
  rules.log.tuning.trial_bytes = rules.log.tuning.trial_bytes_in_place = 4;
  rules.log.tuning.trial_row = 2;
  rules.log.looks_again = script.looks_again;
  rules.log.tuning.drift_window = 1;
  rules.log.tuning.drift_sums = 1;
  if (script.deviation == AgreementScript::Deviation::late) {
    rules.limits.stall_warning = kSecond;
    rules.limits.stall_error = 3 * kSecond;
  }
  return rules;
}

}  // namespace

AgreeingRank::AgreeingRank(const AgreementScript& script, SetRank rank, Witness& witness,
                           std::mt19937_64& random, Tamper* tamper)
    : script_(script),
      world_(set_world(rank.value(), script.ranks)),
      witness_(witness),
      random_(random),
      tamper_(tamper),
      agreement_(world_, rules_of_script(script), *this, situation_, Log::silent(rank.value())) {}

// ---- messages ----

bool AgreeingRank::has_mail() const {
  return std::any_of(inbox_.begin(), inbox_.end(),
                     [](const auto& entry) { return !entry.second.empty(); });
}

// The messages of one sender keep their order.
bool AgreeingRank::hear(bool all) {
  std::vector<SetRank> senders;
  for (const auto& [sender, queue] : inbox_) {
    if (!queue.empty()) senders.push_back(sender);
  }
  if (senders.empty()) return false;
  const SetRank sender = senders[random_() % senders.size()];
  if (sender.value() == script_.slow && !all && random_() % 16 != 0) return false;
  Message message = std::move(inbox_[sender].front());
  inbox_[sender].pop_front();
  if (tamper_ != nullptr && situation_.goes_on() &&
      tamper_->hear(agreement_, world_, script_.servers, sender, message)) {
    return true;
  }
  std::visit(
      [&]<typename Body>(Body& body) {
        if constexpr (std::is_same_v<Body, LeavingMessage>) {
          hear_departure(sender, body);
        } else if constexpr (requires { agreement_.hear(sender, body); }) {
          const std::string what = agreement_.hear(sender, body);
          if (!what.empty()) broken_protocol(sender, what);
        }
      },
      message);
  return true;
}

// After a failure a rank no longer counts decisions, and blames nobody.
void AgreeingRank::broken_protocol(SetRank sender, const std::string& what) {
  if (!situation_.goes_on()) return;
  if (witness_.is_tainted()) {
    has_blamed_ = true;
    return;
  }
  ADD_FAILURE() << "rank " << world_.rank() << " blames rank " << sender << ": it sent " << what;
}

void AgreeingRank::post_around(const Message& message, SetRank except) {
  const SetRank parent = tree_parent(world_.rank());
  if (!parent.is_none() && parent != except) post(parent, message);
  for (SetRank child : tree_children(world_.rank(), world_.size())) {
    if (child != except) post(child, message);
  }
}

// ---- the program ----

void AgreeingRank::begin_step() {
  order_.resize(phase().operations.size());
  for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int>(i);
  if (phase().is_reordered) std::shuffle(order_.begin(), order_.end(), random_);
}

bool AgreeingRank::is_in_flight(const Request& request) const {
  return !request.name.empty() &&
         std::any_of(flying_.begin(), flying_.end(),
                     [&](const auto& entry) { return entry.first->request.name == request.name; });
}

// The request of this rank at a place, which may deviate.
Request AgreeingRank::request_at(const Place& place) {
  Request request = phase().operations[static_cast<std::size_t>(place.index)];
  const bool deviates = SetRank(script_.deviating) == world_.rank() && script_.at == place;
  if (script_.rows_change && request.kind == Kind::allgather && random_() % 32 == 0) {
    request.tensors[0].dims[0] = static_cast<int64_t>(random_() % 5);
  }
  if (deviates && script_.deviation == AgreementScript::Deviation::refusal) {
    request.refusal = "the array is not contiguous";
  } else if (deviates && script_.deviation == AgreementScript::Deviation::shape) {
    request.kind = Kind::allreduce;
    request.tensors = {{nullptr, nullptr, {7}, ""}};
  }
  return request;
}

std::size_t AgreeingRank::window() const {
  return script_.narrow == world_.rank().value() && phase().is_reordered ? 1 : script_.window;
}

bool AgreeingRank::submit() {
  if (!has_more() || is_joining_ || flying_.size() >= window()) return false;
  if (at_.step == phase().steps[world_.rank().index()]) {
    if (!phase().joins) {
      at_ = {at_.phase + 1, 0, 0};
      return true;
    }
    is_joining_ = true;
    Request join;
    join.kind = Kind::join;
    join.iteration = kJoinIteration;
    take(std::move(join), {at_.phase, kJoinStep, 0});
    return true;
  }
  if (at_.index == 0) {
    if (script_.waits_for_step && !flying_.empty()) return false;
    begin_step();
  }
  const Place place{at_.phase, at_.step, order_[static_cast<std::size_t>(at_.index)]};
  const bool is_late = script_.deviation == AgreementScript::Deviation::late &&
                       SetRank(script_.deviating) == world_.rank() && script_.at == place;
  if (is_late && script_.ranks > 1 && !witness_.has_ended_somewhere(place)) return false;
  Request request = request_at(place);
  if (is_in_flight(request)) return false;
  if (request.name.empty()) request.iteration = number_++;
  if (++at_.index == static_cast<int>(order_.size())) at_ = {at_.phase, at_.step + 1, 0};
  take(std::move(request), place);
  return true;
}

void AgreeingRank::take(Request request, const Place& place) {
  const auto operation = std::make_shared<Operation>(std::move(request));
  operation->state.taken_at = situation_.turned_at;
  operation->next_number = number_;
  flying_.emplace(operation, Flying{place});
  if (in_flight_++ == 0) agreement_.note_progress();
  const KeyedDecision* const next = has_room() ? agreement_.take_planned(*operation) : nullptr;
  if (next == nullptr) return agreement_.submit(operation);
  CompleteDecision decision = next->with({operation});
  if (random_() % 4 != 0) return run(std::move(decision));
  agreement_.complete().push_back(std::move(decision));  // a peer is not connected yet
}

// ---- the runner ----

bool AgreeingRank::has_room(uint64_t sequence) const {
  const auto has_slot = [&](uint64_t other) { return other % kSlots == sequence % kSlots; };
  const auto& incomplete = agreement_.incomplete();
  return std::none_of(running_.begin(), running_.end(),
                      [&](const auto& entry) { return has_slot(entry.first); }) &&
         std::none_of(incomplete.begin(), incomplete.end(), [&](const KeyedDecision& keyed) {
           return keyed.decision.sequence < sequence && has_slot(keyed.decision.sequence);
         });
}

bool AgreeingRank::take_turn() {
  if (!situation_.goes_on()) return false;
  if (situation_.turned_at - checked_at_ >= kCheckInterval) {
    checked_at_ = situation_.turned_at;
    agreement_.check();
  }
  bool moved = agreement_.pass_readiness();
  if (agreement_.collect_ready()) {
    bool has_decided = false;
    for (; has_room() && agreement_.decide({.one_node = script_.one_node, .callers = true});
         has_decided = true)
      start();
    if (has_decided) agreement_.start_plan();
    moved |= has_decided;
  }
  for (; has_room() && agreement_.follow_plan(); moved = true) start();
  if (in_flight_ > 0) agreement_.check_plan(has_room());
  moved |= agreement_.gather();
  moved |= start();
  return agreement_.end_join() || moved;
}

bool AgreeingRank::start() {
  std::deque<CompleteDecision>& complete = agreement_.complete();
  bool moved = false;
  while (!complete.empty() && has_room(complete.front().sequence) && random_() % 8 != 0) {
    run(std::move(complete.front()));
    complete.pop_front();
    moved = true;
  }
  return moved || !complete.empty();
}

void AgreeingRank::run(CompleteDecision decision) {
  EXPECT_TRUE(situation_.goes_on()) << "rank " << world_.rank() << " begins after the end";
  if (is_worker()) {
    const uint64_t slot = decision.sequence % kSlots;
    EXPECT_EQ(decision.sequence, slot + kSlots * begun_[slot]++);
  }
  std::vector<std::optional<Place>> places;
  for (const OperationRef& operation : decision.operations) {
    const auto found = flying_.find(operation);
    EXPECT_EQ(found == flying_.end(), operation->is_placeholder);
    if (found == flying_.end()) {
      places.emplace_back();
      continue;
    }
    places.emplace_back(found->second.place);
    // A planned decision may run for nothing.
    const bool is_again = found->second.begun++ > 0;
    const bool was_planned = std::exchange(found->second.is_planned, decision.is_planned);
    EXPECT_TRUE(!is_again || (was_planned && can_run_again(*operation, world_.rank())))
        << "rank " << world_.rank() << " runs an operation twice";
  }
  witness_.begins(world_.rank(), decision, std::move(places));
  running_.emplace(decision.sequence, std::move(decision));
}

// Data reaches every rank, so an operation ends only after all ranks have begun it.
bool AgreeingRank::end_a_decision() {
  std::vector<uint64_t> complete;
  for (const auto& [sequence, decision] : running_) {
    if (witness_.have_all_begun(decision)) complete.push_back(sequence);
  }
  if (complete.empty() || !situation_.goes_on()) return false;
  auto ended = running_.extract(complete[random_() % complete.size()]);
  for (OperationRef& operation : ended.mapped().operations) {
    const OperationRef kept = operation;
    Status status;
    if (agreement_.settle(operation, status)) end(kept, status);
  }
  return true;
}

// ---- the ends of operations ----

bool AgreeingRank::begin(const OperationRef&) {
  ++in_flight_;
  return true;
}

void AgreeingRank::end(const OperationRef& operation, const Status& status) {
  agreement_.ended(*operation, status.ok());
  --in_flight_;
  if (operation->is_placeholder) return;
  const auto found = flying_.find(operation);
  ASSERT_NE(found, flying_.end()) << operation->label() << " ends twice at rank " << world_.rank();
  witness_.ends(world_.rank(), *operation, found->second.place, status);
  flying_.erase(found);
}

uint64_t AgreeingRank::kept() const {
  uint64_t kept = 0;
  for (const auto& [sequence, decision] : running_) {
    if (!std::ranges::all_of(decision.operations, [this](const OperationRef& operation) {
          return can_run_again(*operation, world_.rank());
        })) {
      kept = std::max(kept, sequence + 1);
    }
  }
  return kept;
}

void AgreeingRank::end_join(const OperationRef& join, const AllJoinedMessage& message) {
  number_ = message.next_number;
  at_ = {at_.phase + 1, 0, 0};
  is_joining_ = false;
  end(join, {});
}

// ---- the end of the world ----

void AgreeingRank::fail(const Status& failure) {
  if (!situation_.goes_on()) return;
  situation_.failure = failure;
  for (const auto& [sequence, decision] : std::exchange(running_, {})) {
    for (const OperationRef& operation : decision.operations) end(operation, failure);
  }
  agreement_.abandon(failure);
  EXPECT_EQ(in_flight_, 0u) << "rank " << world_.rank() << " has lost an operation";
}

bool AgreeingRank::leave() {
  if (in_flight_ > 0 || !has_more()) return false;
  situation_.leaving = true;
  post_around(
      LeavingMessage{JobRank(world_.rank().value()), false, {{0, agreement_.started()}}, ""},
      SetRank());
  agreement_.end_undecided({Code::shutdown, "left"});
  agreement_.end_caught_up();
  return true;
}

void AgreeingRank::hear_departure(SetRank sender, const LeavingMessage& message) {
  if (!situation_.departed.ok()) return;
  post_around(message, sender);
  agreement_.depart_from(message.started.at(0));
  if (!situation_.goes_on() || situation_.leaving) return;
  situation_.departed = {Code::rank_failed, "a rank has left"};
  agreement_.end_undecided(situation_.departed);
  agreement_.end_caught_up();
}

std::string AgreeingRank::state() const {
  return cat("rank ", world_.rank(), " at phase ", at_.phase, ", step ", at_.step, ", ",
             flying_.size(), " operations in flight, ", running_.size(), " decisions run\n",
             agreement_.state());
}

bool AgreeingRank::is_deserted() const {
  if (situation_.departed.ok() || situation_.leaving || !agreement_.misses_departed()) {
    return false;
  }
  return running_.empty() || running_.begin()->first >= agreement_.departed_from();
}

}  // namespace rdmacoll
