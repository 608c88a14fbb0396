#include "agreement/agreement.h"

#include <utility>
#include <vector>

#include "base/text.h"

namespace rdmacoll {
namespace {

// A ReadyMessage is closed at this size. Its last record may be as large as a descriptor.
constexpr std::size_t kReadyMessageBytes = 256 << 10;
constexpr std::size_t kReadyRecordBytes = 32;  // the fixed part of a record

}  // namespace

Agreement::Agreement(const SetWorld& world, const Rules& rules, AgreementHost& host,
                     const Situation& now, Log log)
    : world_(world),
      host_(host),
      now_(now),
      output_(log),
      tree_(world, rules.log.servers, host),
      names_(rules.checks_names && world.size() > 1),
      readiness_(world, table_, rules.limits),
      log_(world, table_, rules.log),
      undecided_({world, now, tree_, table_, names_, readiness_, host, last_sender_}),
      queue_({world, host, now, tree_, table_, names_, log_, undecided_}),
      plan_mode_({world, host, now, tree_, table_, names_, readiness_, log_, undecided_, queue_},
                 rules.log, rules.plan_repeats, log),
      gate_({world, rules.log.servers, table_, readiness_, log_, plan_mode_.plan(),
             plan_mode_.catch_up()}) {}

// ---- readiness ----

void Agreement::check() {
  readiness_.check(now_.turned_at, plan_mode_.holds_up_others());
  for (const std::string& warning : readiness_.take_warnings()) output_.warning(warning);
}

bool Agreement::pass_readiness() {
  if (!readiness_.has_news()) return false;
  for (const VerdictMessage& verdict : readiness_.take_verdicts()) {
    tree_.post_down(verdict);
    apply(verdict);
    plan_mode_.forget_order();
  }
  std::vector<ReadyRecord> records = readiness_.take_upward();
  const uint32_t era = plan_mode_.plan().era();
  ReadyMessage message{{}, era};
  if (!records.empty()) message.times = log_.take_times();
  std::size_t bytes = 0;
  for (ReadyRecord& record : records) {
    bytes += record.descriptor.bytes.size() + record.labels.size() + record.listing.size() +
             kReadyRecordBytes;
    for (const auto& [rank, rows] : record.rows) bytes += (1 + rows.size()) * sizeof(int64_t);
    message.records.push_back(std::move(record));
    if (bytes < kReadyMessageBytes) continue;
    tree_.post_up(std::exchange(message, {{}, era}));
    bytes = 0;
  }
  if (!message.records.empty()) tree_.post_up(message);
  return !records.empty();
}

// ---- decisions ----

bool Agreement::collect_ready() {
  if (!tree_.is_root() || !plan_mode_.is_in_log()) return false;
  for (ReadyUnit& unit : readiness_.take_ready()) {
    if (plan_mode_.take_ready(unit)) continue;
    if (log_.has_offer(unit.key)) {  // the gate cannot see that
      host_.broken_protocol(last_sender_, "readiness for an operation that was ready already");
      break;
    }
    const bool on_gpu = undecided_.is_on_gpu(unit.key);
    if (const SetRank rank = log_.offer(std::move(unit), on_gpu); !rank.is_none()) {
      host_.broken_protocol(rank, "row counts that do not fit its operation");
      break;
    }
  }
  return log_.waiting();
}

// Decisions that cannot start are postponed. Meanwhile more operations may become ready and share
// a batch.
bool Agreement::decide(const Visibility& visibility, bool is_idle) {
  // A rank that leaves has ended the operations of which nothing is decided. Decisions that lack
  // operations postpone nothing: their callers may wait for another operation first.
  if (now_.leaving || !complete().empty()) return false;
  auto formed = log_.form(visibility, is_idle, now_.turned_at);
  if (!formed) return false;
  if (formed->is_cut_short) host_.segments_are_short(formed->decision.movement.segment_bytes);
  for (const InternMessage& intern : formed->interns) {
    tree_.post_down(intern);
    tree_.post_servers(intern);
  }
  tree_.post_decision(formed->decision);
  plan_mode_.note(formed->decision);
  obey(queue_.with_keys(std::move(formed->decision)));
  return true;
}

void Agreement::obey(KeyedDecision keyed) {
  if (!now_.goes_on()) return;
  queue_.accept(keyed.decision);
  if (keyed.decision.is_timed) log_.began(keyed.decision.sequence, host_.time());
  queue_.add(std::move(keyed));
  gather();
}

// At a server: its placeholders need no caller's memory, and begin at once.
void Agreement::serve(Decision decision) {
  const KeyedDecision keyed = queue_.with_keys(std::move(decision));
  if (!is_by_servers(keyed.decision.movement.algorithm)) {
    return queue_.accept(keyed.decision);
  }
  if (!now_.goes_on()) return;
  for (std::size_t i = 0; i < keyed.keys.size() && now_.goes_on(); ++i) {
    queue_.add_placeholder(keyed, i);
  }
  obey(keyed);
}

// The operations of the decisions are present, except after a plan. Other ranks may have started an
// operation then that this rank's caller has not submitted yet.
bool Agreement::gather() {
  const bool moved = queue_.gather();
  if (queue_.incomplete().empty() || !now_.goes_on()) return moved;
  const auto wrong = std::ranges::find_if(queue_.incomplete(), [this](const KeyedDecision& keyed) {
    return !plan_mode_.catch_up().waits(keyed.decision.sequence);
  });
  // After a departure the operations of a decision have ended already. This is not the root's
  // fault.
  if (wrong != queue_.incomplete().end() && now_.departed.ok()) {
    host_.broken_protocol(tree_.above(),
                          cat("decision ", wrong->decision.sequence,
                              " names an operation that this rank has not submitted"));
  }
  return moved;
}

void Agreement::ended(const Operation& operation, bool is_agreed) {
  if (tree_.is_root()) readiness_.ended(key_of(operation));
  const uint64_t sequence = operation.state.sequence;
  if (log_.is_timed(sequence)) log_.has_run(sequence, host_.time());
  names_.ended(operation, is_agreed);
  plan_mode_.ended(operation);
}

// ---- messages ----

void Agreement::handle(SetRank sender, ReadyMessage& message) {
  // sent before the sender knew of the plan, or of its end
  if (message.era != plan_mode_.plan().era()) return;
  log_.hear(message.times);
  for (const ReadyRecord& record : message.records) {
    if (!readiness_.add(record, now_.turned_at)) {
      host_.broken_protocol(sender, "readiness for an operation that it cannot have");
      return;
    }
  }
}

void Agreement::handle(SetRank, InternMessage& message) {
  const bool is_next = table_.add(message.id, message.bytes);
  RC_ASSERT(is_next, cat("number ", message.id));
  tree_.post_down(message);
}

void Agreement::handle(SetRank sender, Decision& decision) {
  if (tree_.is_server()) return serve(std::move(decision));
  if (!tree_.post_decision(decision)) {
    return host_.broken_protocol(sender,
                                 "row counts that differ from those that the ranks have sent");
  }
  obey(queue_.with_keys(std::move(decision)));
}

void Agreement::handle(SetRank, VerdictMessage& message) {
  tree_.post_down(message);
  apply(message);
}

void Agreement::apply(const VerdictMessage& verdict) {
  const UnitKey key{verdict.name, verdict.iteration};
  if (key == Undecided::join_key()) readiness_.part();
  const bool is_answer =
      std::find(verdict.ranks.begin(), verdict.ranks.end(), world_.rank()) != verdict.ranks.end();
  // Not submitted here yet: a verdict follows once it is.
  if (plan_mode_.judge(key, verdict.status, is_answer) || !is_answer) return;
  const OperationRef operation = undecided_.take(key);
  if (operation == nullptr) return;
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
      readiness_.awaits_all() || log_.waiting() || !plan_mode_.catch_up().empty()) {
    return false;
  }
  const AllJoinedMessage message = readiness_.all_joined();
  plan_mode_.forget_order();  // the numbers of unnamed operations may change
  tree_.post_down(message);
  apply(message);
  return true;
}

void Agreement::handle(SetRank, AllJoinedMessage& message) {
  tree_.post_down(message);
  apply(message);
}

void Agreement::apply(const AllJoinedMessage& message) {
  const OperationRef join = undecided_.take(Undecided::join_key());
  if (join == nullptr) {
    host_.broken_protocol(kTreeRoot, "the end of a join that this rank has not begun");
    return;
  }
  readiness_.part();
  host_.end_join(join, message);
}

// ---- the end ----

void Agreement::end_undecided(const Status& status) {
  for (const auto& [key, operation] : std::exchange(undecided_.all(), {})) {
    host_.end(operation, status);
  }
}

void Agreement::abandon(const Status& status) {
  plan_mode_.abandon(status);
  queue_.abandon(status);
  end_undecided(status);
}

// ---- state ----

std::string Agreement::state() const {
  std::string text =
      cat("  ", complete().size(), " decided and not started, ", log_.accepted(), " decisions\n");
  for (const auto& [key, operation] : undecided_.all()) {
    text += cat("  ", operation->label(), " waits for its decision\n");
  }
  if (!tree_.is_root() && !undecided_.empty()) {
    text += cat("  ", world_.describe(kTreeRoot),
                " knows which ranks are missing: send SIGUSR1 to that process\n");
  }
  constexpr std::string_view kPhases[] = {"by the log", "by a plan", "leaving a plan"};
  const Plan& plan = plan_mode_.plan();
  text += cat("  era ", plan.era(), ", ", kPhases[static_cast<int>(plan.phase())], ": ",
              queue_.incomplete().size(), " decisions wait for operations, ", plan_mode_.held(),
              " operations for other ranks\n");
  return text + readiness_.state();
}

}  // namespace rdmacoll
