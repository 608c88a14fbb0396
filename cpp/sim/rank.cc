#include "sim/rank.h"

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "execution/follow_end.h"
#include "transport/sim/sim_transport.h"

namespace rdmacoll {
namespace {

constexpr Nanoseconds kStallError = 30 * kSecond;  // virtual time
// A caller's stream takes up to this long to reach an operation.
constexpr uint64_t kStreamWorkMax = 500 * kMicrosecond;

World world_of(const SimScript& script, int rank) {
  World world{"simulation", script.epoch, rank, {}};
  world.servers = script.servers;
  for (int r = 0; r < script.members(); ++r) {
    world.members.push_back({cat("host", r), 100 + r, script.network.node_of(r)});
  }
  return world;
}

Config config_of(const SimScript& script) {
  Config config;
  if (!script.algorithm.empty()) config.allreduce_algorithms = {{script.algorithm}};
  config.canonical = script.canonical;
  config.has_servers = script.servers > 0;
  config.servers = script.servers;
  config.segment_bytes = script.segment_bytes;
  config.plan_repeats = script.plan_repeats;
  if (!script.tries_ways) config.tune = Tune::off;
  if (script.looks_again) config.tune = Tune::online;
  if (script.ipc.is_on) config.cuda_ipc = CudaIpc::automatic;
  config.stall_error_s = static_cast<double>(kStallError) / kSecond;
  return config;
}

// Little data takes long, so that all algorithms are chosen for it.
LinkModel slow_links() {
  LinkModel links = kNicLinks;
  links.network.bytes_per_us = 100;
  return links;
}

}  // namespace

SimRank::SimRank(const SimScript& script, SimNetwork& network, SimTrace& trace, int rank)
    : script_(script),
      network_(network),
      trace_(trace),
      rank_(rank),
      pool_(script.pool_bytes),
      compute_(network, script.slow_compute, gpus_) {
  if (script.fault == Fault::exhaust && is_victim()) pool_.exhaust();
  SimTransport& transport = network.transport(rank);
  transport.use_pool(pool_);
  if (script.direct.ways.any()) {
    nic_ = std::make_unique<SimGpuNic>(script.direct, network, gpus_,
                                       [&transport] { transport.ring(); });
    transport.use_gpu_access(*nic_);
  }
  if (script.records_ends) {
    for (Gpu gpu = 0; gpu < SimGpus::kGpus; ++gpu) streams_.emplace_back(network.clock());
    lanes_ = std::make_unique<SimLanes>(
        network, rank, gpus_, script.gpu_delay_max, [&transport] { transport.ring(); },
        [this] { advance_streams(); });
    compute_.use(*lanes_, script.gpus == GpuUse::none);
  }
  engine_ = std::make_unique<Engine>(EngineParts{world_of(script, rank), config_of(script),
                                                 network.transport(rank), compute_, pool_,
                                                 network.clock(), Log::silent(rank),
                                                 Tuning{.links = slow_links(),
                                                        .batched_bytes = 1024,
                                                        .one_copy_bytes = 256,
                                                        .one_copy_bytes_scattered = 256,
                                                        .one_copy_bytes_exchange = 256,
                                                        .trial_bytes = 64,
                                                        .trial_bytes_in_place = 256,
                                                        .trial_row = 3,
                                                        .drift_window = 1,
                                                        .drift_sums = 2,
                                                        .gpu_direct_bytes = 8}});
  if (script.ipc.is_on) {
    gpu_work_ = std::make_unique<SimGpuWork>(script.ipc, network, gpus_,
                                             [&transport] { transport.ring(); });
    gpus_.take_from(
        [this](Gpu gpu, uint64_t bytes) { return gpu_work_->allocate_array(gpu, bytes); });
    compute_.sum_on_gpus();
    engine_->use(compute_, *gpu_work_);
  }
  for (std::size_t set = 1; set <= script.first_sets; ++set) add_set(set);
}

void SimRank::add_set(std::size_t set) {
  uint32_t number = 0;
  const std::vector<int>& ranks = script_.sets[set - 1];
  const Status added = engine_->add_set({ranks.begin(), ranks.end()}, number);
  RC_ASSERT(added.ok() && number == set, added.message());
}

// ---- the engine ----

bool SimRank::is_awake() const {
  return !asleep_ || network_.is_awake(rank_) || engine_->has_submissions() ||
         network_.clock().now() >= deadline_;
}

void SimRank::step() {
  const bool is_heartbeat = asleep_ && deadline_ == heartbeat_ && !network_.is_awake(rank_) &&
                            !engine_->has_submissions();
  asleep_ = false;
  const bool moved = engine_->progress();
  // A sleeping rank must have no work except waiting.
  if (moved && is_heartbeat && engine_->failure().ok() && !script_.stops_a_rank()) {
    overslept_ =
        cat("rank ", rank_, " slept until its heartbeat with something to do: ", engine_->state());
  }
  const SetTotals totals = engine_->totals();
  if (totals.plans != plans_printed_) print(cat("follows plan ", plans_printed_ = totals.plans));
  if (totals.plans_left != plans_left_printed_) {
    print(cat("has left plan ", plans_left_printed_ = totals.plans_left));
  }
  if (left_ && (engine_->may_end() || network_.clock().now() > leave_deadline_)) {
    engine_->end();
    ended_ = true;
    judge_late_failure();
    print("has ended");
    return;
  }
  if (!moved && engine_->arm()) {
    asleep_ = true;
    heartbeat_ = network_.transport(rank_).next_deadline();
    deadline_ = std::min(engine_->next_deadline(), left_ ? leave_deadline_ : kNever);
  }
}

// ---- the user's thread ----

void SimRank::act() {
  advance_streams();
  if (left_) return;
  if (is_server()) {
    if (has_served()) end_service();
    return;
  }
  if (next_ < order_.size()) {
    if (network_.chance(0.5)) submit(order_[next_++]);
    return;
  }
  if (open_ > 0) return;
  for (auto& task : tasks_) take_result(task);
  std::erase(tasks_, nullptr);
  // In a failed world, a peer may still read the memory that was returned, which check() has
  // overwritten. It discards the result (Executor::end_of_viewed). Between processes such a read
  // does no other harm, so the memory is kept until the end.
  if (failed_) std::move(tasks_.begin(), tasks_.end(), std::back_inserter(given_back_));
  tasks_.clear();
  if (failed_ || phase_ == script_.phases.size()) {
    leave("");
  } else if (script_.fault == Fault::leave && is_victim() && phase_ == script_.fault_phase) {
    leave("ValueError: enough");
  } else if (change_sets()) {
    begin_phase();
  }
}

// A server has no operations, but still receives a failure.
void SimRank::end_service() {
  const Status& failure = engine_->failure();
  const bool is_unharmed = script_.fault == Fault::none || script_.fault == Fault::nap;
  const int named = failure.detail().rank.value();
  const bool is_named = script_.fault == Fault::late
                            ? is_of_previous_world(failure)
                            : !script_.hits_a_rank() || is_victim() || named == script_.victim ||
                                  (script_.fault == Fault::cut && named == script_.partner);
  if (!failure.ok() && (is_unharmed || !is_named)) {
    unnamed_ = cat("server ", rank_ - script_.ranks, ": ", failure.to_json());
  }
  leave("");
}

// Returns false while a set that is to be removed still has work for other ranks.
bool SimRank::change_sets() {
  for (; changes_made_ < script_.changes.size(); ++changes_made_) {
    const SimSetChange& change = script_.changes[changes_made_];
    if (change.phase != phase_) break;
    if (change.is_removed) {
      const Status removed = engine_->remove_set(static_cast<uint32_t>(change.set));
      if (removed.is_busy()) return false;
      RC_ASSERT(removed.ok() || !engine_->failure().ok(), removed.message());
    } else {
      add_set(change.set);
    }
    print(cat("has ", change.is_removed ? "removed" : "added", " set ", change.set));
    asleep_ = false;
  }
  return true;
}

void SimRank::begin_phase() {
  const auto& phase = script_.phases[phase_++];
  order_.clear();
  next_ = 0;
  // Named operations may come in any order. Unnamed ones keep their order, since they are counted.
  for (std::size_t i = 0; i < phase.size(); ++i) order_.push_back(i);
  for (std::size_t i = 0; i + 1 < order_.size(); ++i) {
    const std::size_t j = i + 1;
    if (phase[order_[j]].kind == Kind::join) break;  // a join follows all operations of its rank
    if (!phase[order_[i]].name.empty() && network_.chance(0.5)) std::swap(order_[i], order_[j]);
  }
}

bool SimRank::is_fault_here(std::size_t index, Fault fault) const {
  return is_victim() && script_.fault == fault && phase_ - 1 == script_.fault_phase &&
         index == script_.fault_operation;
}

void SimRank::submit(std::size_t index) {
  const SimOperation& script = script_.phases[phase_ - 1][index];
  const int rank = script_.rank_in(script.set, rank_);
  if (rank < 0 || !script.is_given_by(rank, script_.ranks_of(script.set))) return;
  if (is_fault_here(index, Fault::missing)) return;
  auto task = std::make_unique<Task>(Task{&script, phase_ - 1, index, nullptr, {}});
  SimOperation mine = script;
  if (is_fault_here(index, Fault::mismatch)) mine.shapes.front().front() += 1;
  Request request = sim_request(mine, rank, index % 2 == 1, task->memory);
  request.shares_results = script_.shares_results && script.kind == Kind::allreduce;
  if (is_fault_here(index, Fault::refuse)) {
    request.allocate = [](const std::vector<int64_t>&) -> void* { return nullptr; };
    for (TensorRef& tensor : request.tensors) tensor.output = nullptr;
  }
  if (script_.is_on_gpu(rank_, index)) {
    use_gpu(index, request);
  } else if (script_.records_ends && script_.gpus == GpuUse::none) {
    use_stream(index, nullptr, request);
  }
  request.done = [this, given = task.get()](const Status& status) {
    --open_;
    if (status.ok()) check_begun(*given);
  };
  task->operation = std::make_shared<Operation>(std::move(request));
  if (trace_.is_printed()) print(cat("submits ", label(*task)));
  ++trace_.begun(task->phase, index);
  const Status status = engine_->submit(task->operation);
  if (!status.ok()) {
    judge(*task, status);
    refused_.push_back(std::move(task));
    return;
  }
  ++open_;
  tasks_.push_back(std::move(task));
}

// The caller's stream still computes the tensors when they are submitted.
void SimRank::use_gpu(std::size_t index, Request& request) {
  const auto gpu = static_cast<Gpu>(index % SimGpus::kGpus);
  if (script_.records_ends) return use_stream(index, gpus_.take(request, gpu), request);
  const auto work = static_cast<Nanoseconds>(network_.random()() % kStreamWorkMax);
  request.order = std::make_shared<SimStreamOrder>(network_.clock(), network_.clock().now() + work,
                                                   gpus_.take(request, gpu));
}

// As use_gpu, on a stream that goes on behind the operation. `inputs` writes them; null: they are
// there.
void SimRank::use_stream(std::size_t index, std::function<void()> inputs, Request& request) {
  SimStream& stream = streams_[index % SimGpus::kGpus];
  const auto work = static_cast<Nanoseconds>(network_.random()() % kStreamWorkMax);
  const SimMark mark = stream.add(network_.clock().now() + work, std::move(inputs));
  request.order = std::make_shared<SimPlaceInStream>(stream, mark);
  const bool may_end_early = !request.allocate && !request.tensors.empty();
  if (may_end_early && network_.chance(0.8)) request.caller_stream = request.order;
}

// With a recorded end, the stream of the program waits for it. A kernel behind that reads the
// result, and the program goes on meanwhile.
void SimRank::take_result(std::unique_ptr<Task>& task) {
  Operation& operation = *task->operation;
  if (operation.gpu_end == nullptr) return check(*task);
  bool has_passed = false;
  const Status passed = operation.gpu_end->passed(has_passed);
  early_ends_ += has_passed ? 0 : 1;
  const Status followed = follow_end(operation);
  RC_ASSERT(passed.ok() && followed.ok(), followed.message());
  SimStream& stream = streams_[task->index % SimGpus::kGpus];
  stream.add(0, [this, kept = std::shared_ptr<Task>(std::move(task))] {
    check(*kept);
    if (failed_) read_.push_back(kept);
  });
}

void SimRank::advance_streams() {
  for (SimStream& stream : streams_) stream.advance();
}

void SimRank::leave(const std::string& cause) {
  print(cause.empty() ? "leaves" : cat("leaves: ", cause));
  engine_->leave(cause);
  left_ = true;
  leave_deadline_ = network_.clock().now() + goodbye_limit(network_.policy().peer_timeout);
  asleep_ = false;
}

void SimRank::add_to(SimOutcome& outcome) {
  for (SimStream& stream : streams_) {
    stream.advance(true);
    if (ended_ && !stream.is_idle() && wrong_.empty()) {
      wrong_ = cat("rank ", rank_, ": a stream of the program waits for ever");
    }
  }
  outcome.early_ends += early_ends_;
  if (gpu_work_ != nullptr) outcome.on_gpus += gpu_work_->allocations();
  if (outcome.wrong.empty()) outcome.wrong = wrong_;
  if (nic_ != nullptr) {
    if (outcome.wrong.empty() && !nic_->complaint().empty()) {
      outcome.wrong = cat("rank ", rank_, ": ", nic_->complaint());
    }
    const Transport::Counters wire = network_.transport(rank_).counters();
    outcome.direct_sent += wire.gpu_bytes_sent;
    outcome.direct_received += wire.gpu_bytes_received;
    outcome.flushes += nic_->flushes();
    outcome.evictions += nic_->counters().evictions;
    outcome.freed += nic_->counters().freed;
    outcome.refusals += nic_->counters().refusals;
  }
  if (outcome.unnamed.empty()) outcome.unnamed = unnamed_;
  if (outcome.overslept.empty()) outcome.overslept = overslept_;
  const SetTotals totals = engine_->totals();
  outcome.plans += totals.plans;
  outcome.plans_left += totals.plans_left;
  outcome.caught_up += totals.caught_up;
  outcome.replayed += totals.replayed;
  outcome.refused += is_of_previous_world(engine_->failure()) ? 1 : 0;
  outcome.shared += totals.shared;
  outcome.failed += failed_ ? 1 : 0;
  outcome.failures.push_back(engine_->failure());
  for (const auto& [phase, last] : last_joined_) {
    const auto known = outcome.last_joined.try_emplace(phase, last).first;
    if (known->second == last) continue;
    outcome.wrong = cat("rank ", rank_, " phase ", phase, ": rank ", last,
                        " was the last to join, elsewhere rank ", known->second);
  }
}

}  // namespace rdmacoll
