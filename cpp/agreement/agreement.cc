#include "agreement/agreement.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "operation/cut.h"
#include "operation/placeholder.h"

namespace rdmacoll {
namespace {

// A ReadyMessage is closed at this size. Its last record may be as large as a descriptor.
constexpr std::size_t kReadyMessageBytes = 256 << 10;
constexpr std::size_t kReadyRecordBytes = 32;  // the fixed part of a record

UnitKey key_of_operation(const Operation& operation) {
  return {operation.request.name, operation.request.iteration};
}

}  // namespace

Agreement::Agreement(const World& world, const Rules& rules, AgreementHost& host,
                     const Situation& now, Log log)
    : world_(world),
      host_(host),
      now_(now),
      output_(log),
      tree_(world, rules.log.servers, host),
      readiness_(world, table_, rules.limits),
      log_(world, table_, rules.log),
      plan_(world, table_),
      recurrence_(table_, tree_.is_root() && world.size() > 1 ? rules.plan_repeats : 0),
      names_(rules.checks_names && world.size() > 1),
      gate_({world, rules.log.servers, table_, readiness_, log_, plan_, catch_up_}) {}

const UnitKey& Agreement::join_key() {
  static const UnitKey kJoin{"", kJoinIteration};
  return kJoin;
}

// ---- submissions ----

void Agreement::submit(const OperationRef& operation) {
  undecided_[key_of_operation(*operation)] = operation;
  if (plan_.phase() == PlanMode::Phase::log) {
    operation->request.kind == Kind::join ? announce_join() : announce(operation);
  } else if (is_unplanned(*operation)) {
    freeze();
  }
}

const Agreed* Agreement::take_planned(Operation& operation) {
  const bool waits =
      !undecided_.empty() || !decided_.empty() || !agreed_.empty() || !placeholders_.empty();
  if (waits || !is_in_plan()) return nullptr;
  const uint64_t sequence = log_.accepted();
  const Agreed& next = plan_.decision(sequence);
  if (!plan_.is_about(next, operation) || names_.has_new(operation)) return nullptr;
  operation.state.sequence = sequence;
  accept(next.decision);
  moved_at_ = now_.turned_at;
  return &next;
}

void Agreement::announce(const OperationRef& operation) {
  const Request& request = operation->request;
  ReadyRecord record{
      table_.refer(operation->descriptor), request.iteration, world_.rank, tree_.is_leaf(), {}};
  if (record.descriptor.id == 0 || request.name.empty()) record.labels = request.labels();
  record.listing = names_.say(*operation);
  record.age = now_.turned_at - operation->state.taken_at;
  std::vector<int64_t> rows;  // a refusal has no rows
  if (request.refusal.empty()) rows = own_rows(request, world_.rank, world_.size());
  if (!rows.empty()) record.rows.emplace_back(world_.rank, std::move(rows));
  if (!catch_up_.empty()) catch_up_.announced(key_of_operation(*operation));
  announce(std::move(record));
}

void Agreement::announce(ReadyRecord record) {
  const bool added = readiness_.add(record, now_.turned_at);
  RC_ASSERT(added, record.labels);
}

void Agreement::announce_join() {
  const auto found = undecided_.find(join_key());
  if (found == undecided_.end()) return;
  ReadyRecord record;
  record.iteration = found->second->next_number;
  record.origin = world_.rank;
  record.joins = true;
  announce(std::move(record));
}

// ---- readiness ----

void Agreement::check() {
  readiness_.check(now_.turned_at);
  for (const std::string& warning : readiness_.take_warnings()) output_.warning(warning);
}

bool Agreement::pass_readiness() {
  if (!readiness_.has_news()) return false;
  for (const VerdictMessage& verdict : readiness_.take_verdicts()) {
    tree_.post_down(verdict);
    apply(verdict);
    recurrence_.forget();
  }
  std::vector<ReadyRecord> records = readiness_.take_upward();
  ReadyMessage message{{}, plan_.era()};
  std::size_t bytes = 0;
  for (ReadyRecord& record : records) {
    bytes += record.descriptor.bytes.size() + record.labels.size() + record.listing.size() +
             kReadyRecordBytes;
    for (const auto& [rank, rows] : record.rows) bytes += (1 + rows.size()) * sizeof(int64_t);
    message.records.push_back(std::move(record));
    if (bytes < kReadyMessageBytes) continue;
    tree_.post_up(std::exchange(message, {{}, plan_.era()}));
    bytes = 0;
  }
  if (!message.records.empty()) tree_.post_up(message);
  return !records.empty();
}

// ---- decisions ----

bool Agreement::collect_ready() {
  if (!tree_.is_root() || plan_.phase() != PlanMode::Phase::log) return false;
  offer_ready();
  return log_.waiting();
}

void Agreement::offer_ready() {
  for (ReadyUnit& unit : readiness_.take_ready()) {
    if (catch_up_.names(unit.key)) {
      const uint64_t sequence = catch_up_.sequence_of(unit.key);
      if (plan_.rows_of(sequence) == unit.rows) {
        unit_caught_up(unit.key);
      } else {
        tree_.post_down(AnewMessage{sequence});
        readiness_.await_all(unit.key);
        take_anew(sequence);
      }
    } else if (const int rank = log_.offer(std::move(unit)); rank >= 0) {
      return host_.broken_protocol(rank, "numbers of rows that do not fit its operation");
    }
  }
}

// Decisions that cannot start are postponed. Meanwhile more operations may become ready and share
// a batch.
bool Agreement::decide(bool one_node) {
  if (!agreed_.empty() || !decided_.empty()) return false;
  auto formed = log_.form(one_node);
  if (!formed) return false;
  if (formed->is_cut_short) host_.segments_are_short(formed->decision.segment_bytes);
  for (const InternMessage& intern : formed->interns) {
    tree_.post_down(intern);
    tree_.post_servers(intern);
  }
  tree_.post_decision(formed->decision);
  recurrence_.note(formed->decision);
  obey(agreed_of(std::move(formed->decision)));
  return true;
}

Agreed Agreement::agreed_of(Decision decision) const {
  Agreed agreed{std::move(decision), {}};
  for (const DecisionUnit& unit : agreed.decision.units) {
    const std::string* descriptor = table_.resolve(unit.descriptor);
    const std::string_view name = descriptor == nullptr ? "" : descriptor_name(*descriptor);
    agreed.keys.push_back({std::string(name), unit.iteration});
  }
  if (!agreed.decision.rows.empty()) {
    agreed.rows = std::make_shared<const RowTable>(std::exchange(agreed.decision.rows, RowTable{}));
  }
  return agreed;
}

void Agreement::obey(Agreed agreed) {
  if (!now_.goes_on()) return;
  const bool is_next = accept(agreed.decision);
  RC_ASSERT(is_next, cat("decision ", agreed.decision.sequence));
  agreed_.push_back(std::move(agreed));
  gather();
}

// At a server: its placeholders need no caller's memory, and begin at once.
void Agreement::serve(Decision decision) {
  const Agreed agreed = agreed_of(std::move(decision));
  if (agreed.decision.algorithm != Algorithm::parameter_server) {
    const bool is_next = accept(agreed.decision);
    RC_ASSERT(is_next, cat("decision ", agreed.decision.sequence));
    return;
  }
  if (!now_.goes_on()) return;
  for (std::size_t i = 0; i < agreed.keys.size() && now_.goes_on(); ++i) add_placeholder(agreed, i);
  obey(agreed);
}

// Returns false if the sequence has a gap.
bool Agreement::accept(const Decision& decision) {
  if (!log_.accept(decision)) return false;
  if (tree_.is_root()) tree_.tell_servers(decision);
  return true;
}

// ---- the operations of decisions ----

// Moves the operations of the decisions out of undecided_. They are present, except after a plan.
// Other ranks may have started an operation then that this rank's caller has not submitted yet.
bool Agreement::gather() {
  bool moved = false;
  for (; !agreed_.empty() && now_.goes_on(); agreed_.pop_front(), moved = true) {
    const Decision& next = agreed_.front().decision;
    if (take_operations(agreed_.front())) continue;
    // After a departure the operations of a decision have ended already. This is not the root's
    // fault.
    if (!catch_up_.waits(next.sequence) && now_.departed.ok()) {
      host_.broken_protocol(
          tree_.above(),
          cat("decision ", next.sequence, " names an operation that this rank has not submitted"));
    }
    break;
  }
  return moved;
}

// Takes all operations of the decision, or returns false and takes none.
bool Agreement::take_operations(const Agreed& agreed) {
  const Decision& decision = agreed.decision;
  found_.clear();
  for (std::size_t i = 0; i < agreed.keys.size(); ++i) {
    found_.emplace_back();
    if (!find_operation(agreed, i, found_.back())) return false;
  }
  Decided& decided = decided_.emplace_back(Decided{decision.sequence,
                                                   decision.algorithm,
                                                   decision.segment_bytes,
                                                   agreed.rows,
                                                   decision.most_rows,
                                                   agreed.is_planned,
                                                   {}});
  for (const Found& found : found_) {
    OperationRef& operation = decided.operations.emplace_back(std::move(found.at->second));
    operation->state.sequence = decision.sequence;
    found.among->erase(found.at);
  }
  return true;
}

// Returns false if the operation is absent, or differs from the other ranks' operation of that
// name.
bool Agreement::find_operation(const Agreed& agreed, std::size_t unit, Found& found) {
  const UnitKey& key = agreed.keys[unit];
  found = {&placeholders_, placeholders_.find(key)};
  if (found.at != placeholders_.end()) return true;
  found = {&undecided_, undecided_.find(key)};
  if (found.at == undecided_.end()) {
    if (!take_part_with_zeros(agreed, unit)) return false;
    found = {&placeholders_, placeholders_.find(key)};
    return true;
  }
  const std::string* descriptor = table_.resolve(agreed.decision.units[unit].descriptor);
  const Operation& operation = *found.at->second;
  return descriptor != nullptr && *descriptor == operation.descriptor &&
         plan_.says_own_rows(agreed, operation) && !names_.has_new(operation);
}

// Creates a placeholder for a decision that comes after this rank has joined.
bool Agreement::take_part_with_zeros(const Agreed& agreed, std::size_t unit) {
  if (!has_joined()) return false;
  add_placeholder(agreed, unit);
  return placeholders_.contains(agreed.keys[unit]);
}

void Agreement::add_placeholder(const Agreed& agreed, std::size_t unit) {
  const UnitKey& key = agreed.keys[unit];
  Descriptor descriptor;
  const std::string* described = table_.resolve(agreed.decision.units[unit].descriptor);
  const bool is_whole = described != nullptr && decode_descriptor(*described, descriptor) &&
                        is_complete(descriptor, agreed.own_rows, world_.rank, world_.size());
  if (!is_whole) {
    return host_.broken_protocol(tree_.above(),
                                 "a decision without the rows of a rank that it is about");
  }
  Request request = request_like(descriptor, agreed.own_rows, world_.rank, world_.size());
  request.iteration = key.iteration;
  auto operation = std::make_shared<Operation>(std::move(request));
  operation->is_placeholder = true;
  if (host_.begin(operation)) placeholders_[key] = std::move(operation);
}

// ---- operations that have run ----

bool Agreement::settle(OperationRef& operation, Status& status) {
  moved_at_ = now_.turned_at;
  if (now_.goes_on() && (may_be_behind() || catch_up_.waits(operation->state.sequence))) {
    held_.push_back(std::move(operation));
    return false;
  }
  status = now_.failure;
  if (!again_.empty() && now_.goes_on() && !is_final(*operation)) {
    again_.erase(key_of_operation(*operation));
    if (now_.departed.ok() && !now_.leaving) {
      submit(operation);
      return false;
    }
    status = now_.leaving
                 ? Status{Code::shutdown, "rdmacoll was shut down while the operation was pending."}
                 : now_.departed;
    return true;
  }
  if (!judged_.empty()) {
    const auto verdict = judged_.extract({operation->state.sequence, key_of_operation(*operation)});
    if (status.ok() && !verdict.empty()) status = verdict.mapped();
  }
  return true;
}

void Agreement::ended(const Operation& operation, bool is_agreed) {
  if (tree_.is_root()) readiness_.ended(key_of_operation(operation));
  names_.ended(operation, is_agreed);
  if (!operation.is_placeholder && !again_.empty()) again_.erase(key_of_operation(operation));
}

bool Agreement::is_final(const Operation& ended) const {
  return !may_be_behind() && !catch_up_.waits(ended.state.sequence) &&
         (ended.is_placeholder || !again_.contains(key_of_operation(ended)));
}

void Agreement::end_caught_up() {
  for (OperationRef& operation : std::exchange(held_, {})) {
    Status status;
    if (settle(operation, status)) host_.end(operation, status);
  }
}

}  // namespace rdmacoll
