#include "engine/process_set.h"

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "operation/cut.h"

namespace rdmacoll {
namespace {

// A ReadyMessage is closed at this size. Its last record may be as large as a descriptor.
constexpr std::size_t kReadyMessageBytes = 256 << 10;
constexpr std::size_t kReadyRecordBytes = 32;  // the fixed part of a record

Readiness::Limits limits_of(const Config& config) {
  Readiness::Limits limits;
  limits.stall_warning = from_seconds(config.stall_warning_s);
  limits.stall_error = from_seconds(config.stall_error_s);
  limits.stall_warning = std::min(limits.stall_warning, limits.stall_error);
  return limits;
}

DecisionLog::Rules rules_of(const SetParts& parts) {
  const Config& config = parts.config;
  DecisionLog::Rules rules;
  rules.tuning = parts.tuning;
  rules.segment_bytes_max = parts.segment_bytes_max;
  rules.servers = parts.servers;
  // Colocated servers have no ranks: every worker serves a part.
  if (config.has_servers && config.is_colocated) rules.forced.push_back({Algorithm::direct});
  rules.canonical = config.canonical;
  for (const AlgorithmRange& range : config.allreduce_algorithms) {
    rules.forced.push_back({algorithm_from(range.algorithm), range.bytes_max});
  }
  rules.segment_bytes = config.segment_bytes;
  return rules;
}

}  // namespace

ProcessSet::ProcessSet(SetParts parts, SetHost& host, const Situation& now)
    : number_(parts.number),
      job_(parts.job),
      world_(std::move(parts.world)),
      ranks_(std::move(parts.ranks)),
      servers_(ranks_.end() - parts.servers, ranks_.end()),
      is_one_node_(parts.servers > 0 ? job_.local_size() == job_.size()
                                     : world_.local_size() == world_.size()),
      checks_names_(parts.config.check_names && world_.size() > 1),
      lanes_(parts.lanes),
      host_(host),
      now_(now),
      transport_(parts.transport),
      pool_(parts.pool),
      results_(parts.results),
      executor_(parts.executor),
      log_(parts.log),
      readiness_(world_, table_, limits_of(parts.config)),
      decision_log_(world_, table_, rules_of(parts)),
      planner_(world_, ranks_, parts.servers, transport_, pool_, parts.tuning),
      plan_(world_, table_),
      recurrence_(table_, is_root() && world_.size() > 1 ? parts.config.plan_repeats : 0),
      gate_({world_, parts.servers, table_, readiness_, decision_log_, plan_, catch_up_}) {
  for (int child : tree_children(world_.rank, world_.size())) children_.push_back(ranks_[child]);
  if (is_server()) {
    neighbours_.assign(ranks_.begin(), ranks_.begin() + world_.size());
  } else {
    if (!is_root()) neighbours_.push_back(ranks_[tree_parent(world_.rank)]);
    neighbours_.insert(neighbours_.end(), children_.begin(), children_.end());
    neighbours_.insert(neighbours_.end(), servers_.begin(), servers_.end());
  }
  for (int peer : neighbours_) transport_.connect(peer);
}

bool ProcessSet::is_neighbour(int rank) const {
  return std::find(neighbours_.begin(), neighbours_.end(), rank) != neighbours_.end();
}

int ProcessSet::rank_of(int peer) const {
  if (number_ == 0) return peer;
  const auto found = std::find(ranks_.begin(), ranks_.end(), peer);
  return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

bool ProcessSet::is_connected() const {
  return std::all_of(neighbours_.begin(), neighbours_.end(),
                     [&](int peer) { return transport_.is_connected(peer); });
}

// ---- the loop ----

bool ProcessSet::agree() {
  bool moved = pass_readiness();  // send readiness up; the root collects it
  moved |= decide();              // root: send decisions down
  moved |= follow_plan();         // in a plan: take the next decisions from it
  moved |= gather_operations();   // find the operations of the decisions
  moved |= start_batches();       // start batches of the decided operations
  return end_join() || moved;     // root: end the join once all ranks have joined
}

// In a plan there is nothing to agree on while all operations run already.
bool ProcessSet::has_to_agree() const {
  return now_.turned_at - checked_at_ >= kCheckInterval || readiness_.has_news() ||
         decision_log_.waiting() || !undecided_.empty() || !agreed_.empty() || !decided_.empty();
}

void ProcessSet::take(const OperationRef& operation) {
  if (in_flight_++ == 0) plan_moved_at_ = now_.turned_at;
  refusals_in_flight_ += operation->request.refusal.empty() ? 0 : 1;
  if (!starts_at_once(operation)) await_decision(operation);
}

void ProcessSet::await_decision(const OperationRef& operation) {
  undecided_[{operation->request.name, operation->request.iteration}] = operation;
  if (plan_.phase() == PlanMode::Phase::log) {
    operation->request.kind == Kind::join ? announce_join() : announce(operation);
  } else if (!plan_.fits(*operation) || has_new_names(*operation)) {
    freeze();
  }
}

void ProcessSet::announce(const OperationRef& operation) {
  const Request& request = operation->request;
  ReadyRecord record{
      table_.refer(operation->descriptor), request.iteration, world_.rank, is_leaf(), {}};
  if (record.descriptor.id == 0 || request.name.empty()) record.labels = request.labels();
  record.listing = names_to_say(*operation);
  record.age = now_.turned_at - operation->taken_at;
  std::vector<int64_t> rows;  // a refusal has no rows
  if (request.refusal.empty()) rows = own_rows(request, world_.rank, world_.size());
  if (!rows.empty()) record.rows.emplace_back(world_.rank, std::move(rows));
  announce(std::move(record));
}

void ProcessSet::announce(ReadyRecord record) {
  const bool added = readiness_.add(record, now_.turned_at);
  RC_ASSERT(added, record.labels);
}

bool ProcessSet::pass_readiness() {
  const Nanoseconds now = now_.turned_at;
  if (now - checked_at_ >= kCheckInterval) {
    checked_at_ = now;
    readiness_.check(now);
    for (const std::string& warning : readiness_.take_warnings()) log_.warning(warning);
    results_.take_back();  // takes back lent results that are no longer used
  }
  if (!readiness_.has_news()) return false;
  for (const VerdictMessage& verdict : readiness_.take_verdicts()) {
    post_down(verdict);
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
    post(neighbours_.front(), std::exchange(message, {{}, plan_.era()}));
    bytes = 0;
  }
  if (!message.records.empty()) post(neighbours_.front(), message);
  return !records.empty();
}

bool ProcessSet::decide() {
  if (!is_root() || plan_.phase() != PlanMode::Phase::log) return false;
  offer_ready();
  if (!decision_log_.waiting()) return false;
  const bool one_node = is_one_node();
  bool moved = false;
  // Decisions that cannot start are postponed. Meanwhile more operations may become ready and share
  // a batch.
  while (agreed_.empty() && decided_.empty() &&
         executor_.has_room(lanes_, decision_log_.accepted())) {
    auto formed = decision_log_.form(one_node);
    if (!formed) break;
    if (formed->is_cut_short && !std::exchange(told_of_pool_, true)) {
      const std::string part =
          number() == 0 ? std::string("the") : cat("process set ", number(), "'s part of the");
      log_.warning(cat(part, " buffer pool of ", bytes_text(pool_.size()),
                       " cuts large tensors in segments of ",
                       bytes_text(formed->decision.segment_bytes),
                       ": a larger one is faster (TF_RDMA_BUF_SIZE)."));
    }
    for (const InternMessage& intern : formed->interns) {
      post_down(intern);
      post_servers(intern);
    }
    pass_down(formed->decision);
    recurrence_.note(formed->decision);
    obey(agreed_of(std::move(formed->decision)));
    start_batches();
    moved = true;
  }
  if (moved) start_plan();
  return moved;
}

bool ProcessSet::is_one_node() const {
  return world_.local_size() == world_.size() &&
         std::all_of(neighbours_.begin(), neighbours_.end(), [&](int peer) {
           return transport_.is_connected(peer) && transport_.reach(peer).views;
         });
}

void ProcessSet::offer_ready() {
  for (ReadyUnit& unit : readiness_.take_ready()) {
    if (catch_up_.names(unit.key)) {
      const uint64_t sequence = catch_up_.sequence_of(unit.key);
      if (plan_.rows_of(sequence) == unit.rows) {
        unit_caught_up(unit.key);
      } else {
        post_down(AnewMessage{sequence});
        readiness_.await_all(unit.key);
        take_anew(sequence);
      }
    } else if (const int rank = decision_log_.offer(std::move(unit)); rank >= 0) {
      return host_.broken_protocol(ranks_[rank], "numbers of rows that do not fit its operation");
    }
  }
}

Agreed ProcessSet::agreed_of(Decision decision) const {
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

void ProcessSet::obey(Agreed agreed) {
  if (!now_.goes_on()) return;
  if (!accept(agreed.decision)) {
    host_.broken_protocol(above(), cat("decision ", agreed.decision.sequence, " out of order"));
    return;
  }
  agreed_.push_back(std::move(agreed));
  gather_operations();
}

// Returns false if the sequence has a gap.
bool ProcessSet::accept(const Decision& decision) {
  if (!decision_log_.accept(decision)) return false;
  if (is_root()) tell_servers(decision);
  return true;
}

// Moves the operations of the decisions out of undecided_. They are present, except after a plan.
// Other ranks may have started an operation then that this rank's caller has not submitted yet.
bool ProcessSet::gather_operations() {
  bool moved = false;
  for (; !agreed_.empty() && now_.goes_on(); agreed_.pop_front(), moved = true) {
    const Decision& next = agreed_.front().decision;
    if (take_operations(agreed_.front())) continue;
    // After a departure the operations of a decision have ended already. This is not the root's
    // fault.
    if (!catch_up_.waits(next.sequence) && now_.departed.ok()) {
      host_.broken_protocol(above(), cat("decision ", next.sequence,
                                         " names an operation that this rank has not submitted"));
    }
    break;
  }
  return moved;
}

// Takes all operations of the decision, or returns false and takes none.
bool ProcessSet::take_operations(const Agreed& agreed) {
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
    operation->sequence = decision.sequence;
    found.among->erase(found.at);
  }
  return true;
}

// Returns false if the operation is absent, or differs from the other ranks' operation of that
// name.
bool ProcessSet::find_operation(const Agreed& agreed, std::size_t unit, Found& found) {
  const UnitKey& key = agreed.keys[unit];
  found = {&stand_ins_, stand_ins_.find(key)};
  if (found.at != stand_ins_.end()) return true;
  found = {&undecided_, undecided_.find(key)};
  if (found.at == undecided_.end()) {
    if (!take_part_with_zeros(agreed, unit)) return false;
    found = {&stand_ins_, stand_ins_.find(key)};
    return true;
  }
  const std::string* descriptor = table_.resolve(agreed.decision.units[unit].descriptor);
  const Operation& operation = *found.at->second;
  return descriptor != nullptr && *descriptor == operation.descriptor &&
         plan_.says_own_rows(agreed, operation) && !has_new_names(operation);
}

bool ProcessSet::start_batches() {
  bool moved = false;
  for (; !decided_.empty() && now_.goes_on(); moved = true) {
    Decided& next = decided_.front();
    if (!executor_.has_room(lanes_, next.sequence) || !planner_.connect(next)) {
      if (!now_.lost.empty()) miss_peer_of(next);
      break;
    }
    if (!find_place(next)) break;
    if (start_batch(next)) decided_.pop_front();
  }
  return moved;
}

// Requires connected peers and room in the executor. Returns false on failure. The decision then
// still has its operations, which end with the world.
bool ProcessSet::start_batch(Decided& decided) {
  Batch batch;
  Status status = planner_.prepare(decided, batch);
  if (status.ok()) status = missing_peer(batch);
  const bool is_ready = status.ok();
  if (is_ready && decided.place && decided.place->is_shared()) ++shared_;
  if (is_ready) {
    status = executor_.start(lanes_, std::move(batch));
  } else if (!batch.operations.empty()) {
    decided.operations = std::move(batch.operations);
  }
  if (!status.ok()) host_.fail_myself(status);
  return is_ready;
}

void ProcessSet::report(OperationRef operation) {
  plan_moved_at_ = now_.turned_at;
  if (now_.goes_on() && (may_be_behind() || catch_up_.waits(operation->sequence))) {
    held_.push_back(std::move(operation));
    return;
  }
  if (!again_.empty() && now_.goes_on() && !is_final(*operation)) {
    return say_again(std::move(operation));
  }
  Status status = now_.failure;
  if (!judged_.empty()) {
    const auto verdict = judged_.extract({operation->request.name, operation->request.iteration});
    if (status.ok() && !verdict.empty()) status = verdict.mapped();
  }
  complete(operation, status);
}

void ProcessSet::complete(const OperationRef& operation, const Status& status) {
  if (std::exchange(operation->has_ended, true)) return;
  if (is_root()) readiness_.ended({operation->request.name, operation->request.iteration});
  note_names_heard(*operation, status.ok());
  if (operation->stands_in) {
    --stand_ins_in_flight_;
    keep_zeros(*operation);
  } else if (!again_.empty()) {
    again_.erase({operation->request.name, operation->request.iteration});
  }
  refusals_in_flight_ -= operation->request.refusal.empty() ? 0 : 1;
  --in_flight_;
  host_.end(operation, status);
}

}  // namespace rdmacoll
