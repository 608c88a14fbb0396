#include "engine/engine.h"

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "engine/cut.h"

namespace rdmacoll {
namespace {

// A message of records is closed at this size; the last record may be as large as a descriptor.
constexpr std::size_t kReadyMessageBytes = 256 << 10;
constexpr std::size_t kReadyRecordBytes = 32;  // without what varies

Readiness::Limits limits_of(const Config& config) {
  Readiness::Limits limits;
  limits.stall_warning = from_seconds(config.stall_warning_s);
  limits.stall_error = from_seconds(config.stall_error_s);
  limits.stall_warning = std::min(limits.stall_warning, limits.stall_error);
  return limits;
}

// All segments that can be in flight together fit into half of the pool; callers have the other. Of
// all algorithms recursive doubling needs most: in each round a place to receive and one to show.
uint64_t segment_bytes_max(const MemoryPool& pool, int ranks) {
  const int rounds = std::bit_width(static_cast<unsigned>(ranks - 1));
  return pool.size() / 2 / (kBatchesInFlight * kSegmentsInFlight) / (2 * rounds + 2);
}

DecisionLog::Rules rules_of(const Config& config, const Tuning& tuning, uint64_t segment_bytes) {
  DecisionLog::Rules rules;
  rules.tuning = tuning;
  rules.segment_bytes_max = segment_bytes;
  rules.canonical = config.canonical;
  for (const AlgorithmRange& range : config.allreduce_algorithms) {
    rules.forced.push_back({algorithm_from(range.algorithm), range.bytes_max});
  }
  rules.segment_bytes = config.segment_bytes;
  return rules;
}

}  // namespace

Engine::Engine(EngineParts parts)
    : world_(std::move(parts.world)),
      config_(std::move(parts.config)),
      transport_(parts.transport),
      compute_(parts.compute),
      pool_(parts.pool),
      clock_(parts.clock),
      peer_timeout_(from_seconds(config_.peer_timeout_s)),
      log_(parts.log),
      neighbours_(tree_children(world_.rank, world_.size())),
      readiness_(world_, table_, limits_of(config_)),
      decision_log_(world_, table_,
                    rules_of(config_, parts.tuning, segment_bytes_max(pool_, world_.size()))),
      planner_(world_, transport_, pool_, parts.tuning.one_copy_bytes),
      executor_(world_, transport_, compute_, pool_),
      plan_(table_, tree_children(world_.rank, world_.size()).size()),
      recurrence_(table_, is_root() && world_.size() > 1 ? config_.plan_repeats : 0) {
  if (!is_root()) neighbours_.insert(neighbours_.begin(), tree_parent(world_.rank));
  for (int peer : neighbours_) transport_.connect(peer);
}

// ---- the loop ----

bool Engine::progress() {
  settled_ = !advance();
  return !settled_;
}

bool Engine::advance() {
  notice_gap();
  bool moved = take_submissions();  // what callers want
  // What a plan has started leaves with this turn's words, and waits when its answer comes in.
  if (moved && failure_.ok() && suspects_.empty()) execute();
  moved |= poll_transport();  // control messages and completions come in
  if (!suspects_.empty() && failure_.ok()) moved |= judge_suspects();
  if (!failure_.ok()) return end_failed_world() || moved;
  if (!suspects_.empty()) return moved;
  if (has_to_agree()) {
    moved |= pass_readiness();     // readiness goes up; the root collects it
    moved |= decide();             // the root's decisions go down
    moved |= follow_plan();        // or each rank takes them from the plan
    moved |= gather_operations();  // what is decided finds its operations
    moved |= start_batches();      // decided operations become batches
  }
  moved |= execute();            // steps that can run do
  moved |= finish_operations();  // callers get their memory back
  moved |= end_deserted();       // what a rank that has left will never join in
  if (!to_answer_.empty()) moved |= answer_goodbyes();
  return flush_outbox() || moved;
}

// In a plan, with nothing but what is under way already, there is nothing to agree on.
bool Engine::has_to_agree() const {
  return turned_at_ - checked_at_ >= kCheckInterval || readiness_.has_news() ||
         decision_log_.waiting() || !undecided_.empty() || !agreed_.empty() || !decided_.empty();
}

// Heartbeats are due five times in the time after which a silent peer has failed, so a loop that is
// later than that was stopped, or starved.
void Engine::notice_gap() {
  const Nanoseconds now = clock_.now();
  if (turned_at_ != 0 && now - turned_at_ > peer_timeout_) {
    gap_ = now - turned_at_;
    resumed_at_ = now;
  }
  turned_at_ = now;
}

Status Engine::submit(const OperationRef& operation) {
  if (!operation->is_checked)
    RC_RETURN_IF_ERROR(check(operation->request, world_.rank, world_.size()));
  return submissions_.add(operation);
}

bool Engine::take_submissions() {
  submissions_.drain(submitted_);
  if (submitted_.empty()) return false;
  for (const OperationRef& operation : submitted_) {
    if (in_flight_++ == 0) busy_since_ = plan_moved_at_ = turned_at_;
    if (!failure_.ok() || !departed_.ok()) {
      complete(operation, failure_.ok() ? departed_ : failure_);
      continue;
    }
    operation->taken_at = turned_at_;
    if (starts_at_once(operation)) continue;
    undecided_[{operation->request.name, operation->request.iteration}] = operation;
    if (plan_.phase() == PlanMode::Phase::log) {
      announce(operation);
    } else if (!plan_.fits(*operation)) {
      freeze();
    }
  }
  submitted_.clear();
  return true;
}

void Engine::announce(const OperationRef& operation) {
  const Request& request = operation->request;
  ReadyRecord record{
      table_.refer(operation->descriptor), request.iteration, world_.rank, is_leaf(), {}};
  if (record.descriptor.id == 0 || request.name.empty()) record.labels = request.labels();
  record.age = turned_at_ - operation->taken_at;
  std::vector<int64_t> rows = own_rows(request, world_.rank, world_.size());
  if (!rows.empty()) record.rows.emplace_back(world_.rank, std::move(rows));
  announce(std::move(record));
}

void Engine::announce(ReadyRecord record) {
  const bool added = readiness_.add(record, turned_at_);
  RC_ASSERT(added, record.labels);
}

bool Engine::pass_readiness() {
  const Nanoseconds now = turned_at_;
  if (now - checked_at_ >= kCheckInterval) {
    checked_at_ = now;
    readiness_.check(now);
    for (const std::string& warning : readiness_.take_warnings()) log_.warning(warning);
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
    bytes += record.descriptor.bytes.size() + record.labels.size() + kReadyRecordBytes;
    for (const auto& [rank, rows] : record.rows) bytes += (1 + rows.size()) * sizeof(int64_t);
    message.records.push_back(std::move(record));
    if (bytes < kReadyMessageBytes) continue;
    post(neighbours_.front(), std::exchange(message, {{}, plan_.era()}));
    bytes = 0;
  }
  if (!message.records.empty()) post(neighbours_.front(), message);
  return !records.empty();
}

bool Engine::decide() {
  if (!is_root() || plan_.phase() != PlanMode::Phase::log) return false;
  offer_ready();
  if (!decision_log_.waiting()) return false;
  const bool one_node = world_.local_size() == world_.size() &&
                        std::all_of(neighbours_.begin(), neighbours_.end(), [&](int peer) {
                          return transport_.is_connected(peer) && transport_.reach(peer).views;
                        });
  bool moved = false;
  // What cannot start yet is not decided yet: meanwhile more may become ready, and share a batch.
  while (agreed_.empty() && decided_.empty() && executor_.has_room(decision_log_.accepted())) {
    auto formed = decision_log_.form(one_node);
    if (!formed) break;
    if (formed->is_cut_short && !std::exchange(told_of_pool_, true)) {
      log_.warning(cat("the buffer pool of ", bytes_text(pool_.size()),
                       " cuts large tensors in segments of ",
                       bytes_text(formed->decision.segment_bytes),
                       ": a larger one is faster (TF_RDMA_BUF_SIZE)."));
    }
    for (const InternMessage& intern : formed->interns) post_down(intern);
    pass_down(formed->decision);
    recurrence_.note(formed->decision);
    obey(agreed_of(std::move(formed->decision)));
    start_batches();
    moved = true;
  }
  if (moved) start_plan();
  return moved;
}

void Engine::offer_ready() {
  for (ReadyUnit& unit : readiness_.take_ready()) {
    if (catch_up_.names(unit.key)) {
      unit_joined(unit.key);
    } else if (const int rank = decision_log_.offer(std::move(unit)); rank >= 0) {
      return broken_protocol(rank, "numbers of rows that do not fit its operation");
    }
  }
}

Agreed Engine::agreed_of(Decision decision) const {
  Agreed agreed{std::move(decision), {}};
  for (const DecisionUnit& unit : agreed.decision.units) {
    const std::string* descriptor = table_.resolve(unit.descriptor);
    const std::string_view name = descriptor == nullptr ? "" : descriptor_name(*descriptor);
    agreed.keys.push_back({std::string(name), unit.iteration});
  }
  return agreed;
}

void Engine::obey(Agreed agreed) {
  if (!failure_.ok()) return;
  if (!decision_log_.accept(agreed.decision)) {
    broken_protocol(0, cat("decision ", agreed.decision.sequence, " out of order"));
    return;
  }
  agreed_.push_back(std::move(agreed));
  gather_operations();
}

// The operations of a decision leave the undecided. They are here, but after a plan, when others
// may have started what this rank's caller has not submitted yet.
bool Engine::gather_operations() {
  bool moved = false;
  for (; !agreed_.empty() && failure_.ok(); agreed_.pop_front(), moved = true) {
    const Decision& next = agreed_.front().decision;
    if (take_operations(agreed_.front())) continue;
    // After a departure what this decision names has been ended: no fault of the root's.
    if (!catch_up_.waits(next.sequence) && departed_.ok()) {
      broken_protocol(0, cat("decision ", next.sequence,
                             " names an operation that this rank has not submitted"));
    }
    break;
  }
  return moved;
}

// All of them, or none and false.
bool Engine::take_operations(const Agreed& agreed) {
  const Decision& decision = agreed.decision;
  found_.clear();
  for (std::size_t i = 0; i < agreed.keys.size(); ++i) {
    found_.emplace_back();
    if (!find_operation(decision.units[i], agreed.keys[i], found_.back())) return false;
  }
  Decided& decided = decided_.emplace_back(Decided{decision.sequence,
                                                   decision.algorithm,
                                                   decision.segment_bytes,
                                                   decision.rows,
                                                   decision.most_rows,
                                                   {}});
  for (const Found& found : found_) {
    OperationRef& operation = decided.operations.emplace_back(std::move(found.at->second));
    operation->sequence = decision.sequence;
    found.among->erase(found.at);
  }
  return true;
}

// False: it is not here, or is not what the others have under its name.
bool Engine::find_operation(const DecisionUnit& unit, const UnitKey& key, Found& found) {
  found = {&stand_ins_, stand_ins_.find(key)};
  if (found.at != stand_ins_.end()) return true;
  found = {&undecided_, undecided_.find(key)};
  if (found.at == undecided_.end()) return false;
  const std::string* descriptor = table_.resolve(unit.descriptor);
  return descriptor != nullptr && *descriptor == found.at->second->descriptor;
}

bool Engine::start_batches() {
  bool moved = false;
  for (; !decided_.empty() && failure_.ok(); moved = true) {
    Decided& next = decided_.front();
    if (!executor_.has_room(next.sequence) || !planner_.connect(next)) {
      if (!lost_.empty()) miss_peer_of(next);
      break;
    }
    if (start_batch(next)) decided_.pop_front();
  }
  return moved;
}

// Its peers are connected, and the executor has room. False: it has failed, and what it consists of
// is still there, to end with the world.
bool Engine::start_batch(Decided& decided) {
  Batch batch;
  Status status = planner_.prepare(decided, batch);
  if (status.ok()) status = missing_peer(batch);
  const bool is_ready = status.ok();
  if (is_ready) {
    status = executor_.start(std::move(batch));
  } else if (!batch.operations.empty()) {
    decided.operations = std::move(batch.operations);
  }
  if (!status.ok()) fail_myself(status);
  return is_ready;
}

bool Engine::execute() {
  const bool moved = executor_.poll();
  const Status& status = executor_.status();
  if (status.code() == Code::rank_failed && status.detail().rank != world_.rank) {
    fail(status.detail().rank, status);  // it ended while its memory was read
  } else if (!status.ok()) {
    fail_myself(status);
  }
  return moved;
}

// Between the last read of a peer's memory and the success of an operation, the transport is looked
// at once more: a peer that fails says so before it gives its memory back, so whoever may have read
// too late learns it here, and reports the failure instead of a sum that may be wrong. And what
// this turn has posted leaves: peers wait for it, and the caller that drives may go away with its
// result.
bool Engine::finish_operations() {
  if (!executor_.has_finished()) return false;
  if (executor_.has_viewed() || transport_.needs_poll()) {
    poll_transport();
    if (!suspects_.empty() && failure_.ok()) return true;  // it ends with them
  }
  plan_moved_at_ = turned_at_;
  executor_.take_finished(finished_);
  for (OperationRef& operation : finished_) report(std::move(operation));
  finished_.clear();
  return true;
}

void Engine::report(OperationRef operation) {
  if (failure_.ok() && catch_up_.waits(operation->sequence)) {
    held_.push_back(std::move(operation));
    return;
  }
  Status status = failure_;
  if (!judged_.empty() && !operation->stands_in) {
    const auto verdict = judged_.extract({operation->request.name, operation->request.iteration});
    if (status.ok() && !verdict.empty()) status = verdict.mapped();
  }
  complete(operation, status);
}

void Engine::complete(const OperationRef& operation, const Status& status) {
  if (operation->done()) return;
  if (is_root()) readiness_.ended({operation->request.name, operation->request.iteration});
  if (operation->stands_in) {
    --stand_ins_in_flight_;
    if (--in_flight_ == 0) busy_ += turned_at_ - busy_since_;
    return operation->complete(status);
  }
  ++operations_;
  tensors_ += operation->request.tensors.size();
  payload_bytes_ += operation->request.bytes();
  if (--in_flight_ == 0) busy_ += turned_at_ - busy_since_;
  submissions_.forget(*operation);
  operation->complete(status);
}

}  // namespace rdmacoll
