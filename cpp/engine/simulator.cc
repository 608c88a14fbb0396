#include "engine/simulator.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include "base/text.h"
#include "engine/engine.h"
#include "engine/sim_parts.h"
#include "engine/sim_script.h"
#include "engine/sim_values.h"
#include "memory/pool.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"

namespace rdmacoll {
namespace {

constexpr Nanoseconds kStallError = 30 * kSecond;  // virtual
constexpr Nanoseconds kEndOfTime = 300 * kSecond;
constexpr Nanoseconds kThought = 20 * kMicrosecond;  // between two acts of a user's thread
constexpr uint64_t kStepsMax = 10'000'000;

// One rank: its engine, and the program that uses it.
class Rank {
 public:
  Rank(const SimScript& script, SimNetwork& network, int rank)
      : script_(script), network_(network), rank_(rank), compute_(network, script.slow_compute) {
    World world{"simulation", 7, rank, {}};
    for (int r = 0; r < script.ranks; ++r) {
      world.members.push_back({cat("host", r), 100 + r, script.network.node_of(r)});
    }
    Config config;
    if (!script.algorithm.empty()) config.allreduce_algorithms = {{script.algorithm}};
    config.canonical = script.canonical;
    config.segment_bytes = script.segment_bytes;
    config.plan_repeats = script.plan_repeats;
    config.stall_error_s = static_cast<double>(kStallError) / kSecond;
    const bool exhausted = script.fault == Fault::exhaust && script.victim == rank;
    const Status status = MemoryPool::create(exhausted ? 4096 : 64 << 20, pool_);
    RC_ASSERT(status.ok(), status.message());
    if (exhausted) (void)pool_->allocate(4096);  // nothing is left
    Log log(LogLevel::error, rank);
    log.silence();
    engine_ = std::make_unique<Engine>(
        EngineParts{world, config, network.transport(rank), compute_, *pool_, network.clock(), log,
                    Tuning{.direct_bytes_network = 1024, .one_copy_bytes = 256}});
  }

  bool awake() const {
    return !asleep_ || network_.is_awake(rank_) || engine_->has_submissions() ||
           network_.clock().now() >= deadline_;
  }
  Nanoseconds deadline() const { return asleep_ ? deadline_ : network_.clock().now(); }
  bool finished() const { return ended_; }

  void step() {
    asleep_ = false;
    const bool moved = engine_->progress();
    if (left_ && (engine_->may_end() || network_.clock().now() > leave_deadline_)) {
      engine_->end();
      ended_ = true;
      return;
    }
    if (!moved && engine_->arm()) {
      asleep_ = true;
      deadline_ = std::min(engine_->next_deadline(), left_ ? leave_deadline_ : kNever);
    }
  }

  // The user's thread: submits, looks at what is done, goes on.
  bool can_act() const {
    return !left_ && (next_ < order_.size() ||
                      std::all_of(tasks_.begin(), tasks_.end(),
                                  [](const auto& task) { return task->operation->done(); }));
  }
  void act() {
    if (left_) return;
    if (next_ < order_.size()) {
      if (network_.chance(0.5)) submit(order_[next_++]);
      return;
    }
    if (!can_act()) return;
    for (const auto& task : tasks_) check(*task);
    // In a world that has failed somebody may still read what was given back, and throws away what
    // comes of it. Between processes that is no crash, so the memory stays until the end.
    if (failed_) std::move(tasks_.begin(), tasks_.end(), std::back_inserter(given_back_));
    tasks_.clear();
    if (failed_ || phase_ == script_.phases.size()) {
      leave("");
    } else if (script_.fault == Fault::leave && script_.victim == rank_ &&
               phase_ == script_.fault_phase) {
      leave("ValueError: enough");
    } else {
      begin_phase();
    }
  }

  std::string wrong, unnamed;
  void count_plans(SimOutcome& outcome) const {
    outcome.plans += engine_->plans();
    outcome.plans_left += engine_->plans_left();
    outcome.caught_up += engine_->caught_up();
  }
  std::string waits_for() const { return cat("rank ", rank_, ": ", engine_->state()); }

 private:
  struct Task {
    const SimOperation* script;
    std::size_t phase, index;
    OperationRef operation;
    SimMemory memory;
  };

  void begin_phase() {
    const auto& phase = script_.phases[phase_++];
    order_.clear();
    next_ = 0;
    // The named may come in any order, the unnamed keep theirs: they are counted.
    for (std::size_t i = 0; i < phase.size(); ++i) order_.push_back(i);
    for (std::size_t i = 0; i + 1 < order_.size(); ++i) {
      const std::size_t j = i + 1;
      if (!phase[order_[i]].name.empty() && network_.chance(0.5)) std::swap(order_[i], order_[j]);
    }
  }

  bool is_fault_here(std::size_t index, Fault fault) const {
    return script_.fault == fault && phase_ - 1 == script_.fault_phase &&
           index == script_.fault_operation;
  }

  void submit(std::size_t index) {
    const SimOperation& script = script_.phases[phase_ - 1][index];
    if (script_.victim == rank_ && is_fault_here(index, Fault::missing)) return;
    auto task = std::make_unique<Task>(Task{&script, phase_ - 1, index, nullptr, {}});
    SimOperation mine = script;
    if (script_.victim == rank_ && is_fault_here(index, Fault::mismatch)) {
      mine.shapes.front().front() += 1;
    }
    Request request = sim_request(mine, rank_, index % 2 == 1, task->memory);
    task->operation = std::make_shared<Operation>(std::move(request));
    const Status status = engine_->submit(task->operation);
    if (!status.ok()) {
      judge(*task, status);
      return;
    }
    tasks_.push_back(std::move(task));
  }

  void check(Task& task) {
    const Status& status = task.operation->status();
    if (!status.ok()) {
      judge(task, status);
    } else {
      const std::string complaint =
          sim_complaint(*task.script, script_.ranks, rank_, *task.operation);
      if (!complaint.empty()) {
        wrong =
            cat("rank ", rank_, " phase ", task.phase, " operation ", task.index, ": ", complaint);
      }
    }
    // Whoever still reads or writes here is caught: by the sanitizer, or by a wrong sum.
    for (auto& input : task.memory.inputs) std::fill(input.begin(), input.end(), std::byte{0xee});
    for (auto& output : task.memory.outputs)
      std::fill(output.begin(), output.end(), std::byte{0xee});
  }

  // Is this the error that the fault must bring?
  void judge(const Task& task, const Status& status) {
    const ErrorDetail& detail = status.detail();
    bool expected = false;
    switch (script_.fault) {
      case Fault::none:
      case Fault::nap:
        break;
      case Fault::mismatch:
        expected = status.code() == Code::mismatch && task.phase == script_.fault_phase &&
                   task.index == script_.fault_operation;
        if (status.code() == Code::rank_failed) {  // another took the error as its end
          expected = detail.cause.find("left") != std::string::npos;
          failed_ = true;
        }
        break;
      case Fault::missing:
        // What is missing names the victim, as one who stalls or has come to its end. Meanwhile the
        // victim has gone on alone, so that later operations may stall on either side.
        expected = status.code() == Code::stalled || status.code() == Code::rank_failed;
        if (task.script->name == "missing" && task.phase == script_.fault_phase) {
          expected = expected && detail.ranks == std::vector<int>{script_.victim};
        }
        failed_ = status.code() == Code::rank_failed;
        break;
      default:  // the victim may see itself, or anybody, since it was cut off from all
        expected = status.code() == Code::rank_failed &&
                   (detail.rank == script_.victim || rank_ == script_.victim);
        if (script_.fault == Fault::leave && rank_ != script_.victim) {
          expected = expected && detail.cause.find("ValueError") != std::string::npos;
        }
        failed_ = true;
    }
    if (!expected) {
      unnamed = cat("rank ", rank_, " phase ", task.phase, " operation ", task.index, ": ",
                    status.to_json());
      failed_ = true;
    }
  }

  void leave(const std::string& cause) {
    engine_->leave(cause);
    left_ = true;
    leave_deadline_ = network_.clock().now() + 2 * kSecond;
    asleep_ = false;
  }

  const SimScript& script_;
  SimNetwork& network_;
  int rank_;
  std::unique_ptr<MemoryPool> pool_;
  SlowCompute compute_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Task>> tasks_, given_back_;
  std::vector<std::size_t> order_;
  std::size_t phase_ = 0, next_ = 0;
  bool failed_ = false, left_ = false, ended_ = false, asleep_ = false;
  Nanoseconds deadline_ = 0, leave_deadline_ = kNever;
};

class Simulation {
 public:
  explicit Simulation(const SimScript& script)
      : script_(script), network_(script.ranks, script.network), start_(network_.clock().now()) {
    for (int rank = 0; rank < script.ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(script_, network_, rank));
    }
  }

  SimOutcome run() {
    SimOutcome outcome;
    outcome.scenario = script_.text();
    uint64_t steps = 0;
    while (!over()) {
      if (++steps > kStepsMax || network_.clock().now() - start_ > kEndOfTime) {
        outcome.hang = report_hang();
        break;
      }
      strike();
      turn();
    }
    for (const auto& rank : ranks_) {
      if (outcome.wrong.empty()) outcome.wrong = rank->wrong;
      if (outcome.unnamed.empty()) outcome.unnamed = rank->unnamed;
      rank->count_plans(outcome);
    }
    return outcome;
  }

 private:
  bool runs(int rank) const {
    return !network_.is_dead(rank) && !ranks_[rank]->finished() && !is_paused(rank);
  }
  bool is_paused(int rank) const {
    return rank == script_.victim && network_.clock().now() < paused_until_;
  }
  bool over() const {
    for (int rank = 0; rank < script_.ranks; ++rank) {
      if (!network_.is_dead(rank) && !ranks_[rank]->finished()) return false;
    }
    return true;
  }

  void strike() {
    if (struck_ || network_.clock().now() - start_ < script_.fault_at) return;
    struck_ = true;
    if (script_.fault == Fault::kill) network_.kill(script_.victim);
    if (script_.fault == Fault::nap || script_.fault == Fault::stop) {
      paused_until_ = network_.clock().now() + script_.pause;
    }
  }

  // One thing happens: a rank is stepped, a user's thread goes on, or a message arrives.
  void turn() {
    std::vector<int> awake;
    for (int rank = 0; rank < script_.ranks; ++rank) {
      if (runs(rank)) {
        if (network_.chance(0.3)) ranks_[rank]->act();
        if (ranks_[rank]->awake()) awake.push_back(rank);
      }
    }
    if (!awake.empty() && (network_.chance(0.7) || network_.next_event() == kNever)) {
      const auto pick = network_.random()() % awake.size();
      ranks_[awake[pick]]->step();
      network_.clock().advance_to(network_.clock().now() + 200);  // polling takes time too
      return;
    }
    if (!awake.empty() && network_.next_event() > network_.clock().now() + kMillisecond) {
      network_.clock().advance_to(network_.clock().now() + kMicrosecond);
      return;
    }
    Nanoseconds limit = struck_ ? kNever : start_ + script_.fault_at;
    if (paused_until_ > network_.clock().now()) limit = std::min(limit, paused_until_);
    for (int rank = 0; rank < script_.ranks; ++rank) {
      if (!runs(rank)) continue;
      limit = std::min(limit, ranks_[rank]->deadline());
      if (ranks_[rank]->can_act()) limit = std::min(limit, network_.clock().now() + kThought);
    }
    if (!network_.step(std::max(limit, network_.clock().now()))) {
      network_.clock().advance_to(limit == kNever ? network_.clock().now() + kMillisecond : limit);
    }
  }

  std::string report_hang() const {
    std::string text;
    for (int rank = 0; rank < script_.ranks; ++rank) {
      if (runs(rank)) text += ranks_[rank]->waits_for();
    }
    return text.empty() ? "the simulation does not end" : text;
  }

  const SimScript& script_;
  SimNetwork network_;
  Nanoseconds start_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Nanoseconds paused_until_ = 0;
  bool struck_ = false;
};

}  // namespace

SimOutcome simulate(uint64_t seed) { return simulate(make_script(seed)); }

SimOutcome simulate(const SimScript& script) { return Simulation(script).run(); }

}  // namespace rdmacoll
