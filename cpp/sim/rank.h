// One simulated rank: its engine, and the program that uses the engine.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "sim/gpu_nic.h"
#include "sim/gpu_work.h"
#include "sim/parts.h"
#include "sim/script.h"
#include "sim/simulator.h"
#include "sim/trace.h"
#include "sim/values.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

class SimRank {
 public:
  SimRank(const SimScript& script, SimNetwork& network, SimTrace& trace, int rank);

  bool is_awake() const;
  Nanoseconds deadline() const { return asleep_ ? deadline_ : network_.clock().now(); }
  bool finished() const { return ended_; }
  void step();  // steps the engine

  // The user's thread: act() submits, checks results and continues.
  bool can_act() const {
    if (is_server()) return !left_ && has_served();
    return !left_ && (next_ < order_.size() || open_ == 0);
  }
  void act();

  // Suspends the rank within jobs: time may pass in `before_job`.
  void call_before_jobs(std::function<void()> before_job) {
    compute_.call_before_jobs(std::move(before_job));
  }
  // From now on the pool has no free memory.
  void exhaust() { pool_.exhaust(); }
  // The process has ended.
  void lose_gpus() {
    if (gpu_work_ != nullptr) gpu_work_->lose();
  }

  // After the last step.
  void add_to(SimOutcome& outcome);
  std::string waits_for() const { return cat("rank ", rank_, ": ", engine_->state()); }

 private:
  struct Task {
    const SimOperation* script;
    std::size_t phase, index;
    OperationRef operation;
    SimMemory memory;
  };

  bool is_victim() const { return script_.victim == rank_; }
  bool is_server() const { return rank_ >= script_.ranks; }
  bool has_served() const { return engine_->have_workers_left() || !engine_->failure().ok(); }
  void end_service();
  void add_set(std::size_t set);
  bool change_sets();
  void begin_phase();
  bool is_fault_here(std::size_t index, Fault fault) const;
  void submit(std::size_t index);
  void use_gpu(std::size_t index, Request& request);
  void use_stream(std::size_t index, std::function<void()> inputs, Request& request);
  void check(Task& task);
  // Takes the task if a stream goes on with it.
  void take_result(std::unique_ptr<Task>& task);
  void advance_streams();
  void check_begun(const Task& task);
  std::string error_of(const Task& task);
  void judge(const Task& task, const Status& status);
  bool is_expected(const Task& task, const Status& status);
  bool is_of_previous_world(const Status& status) const;
  void judge_late_failure();
  void leave(const std::string& cause);
  void print(const std::string& text) const { trace_.print(rank_, text); }
  std::string label(const Task& task) const;

  const SimScript& script_;
  SimNetwork& network_;
  SimTrace& trace_;
  int rank_;
  SimPool pool_;
  SimGpus gpus_;
  std::vector<SimStream> streams_;   // by GPU, if ends are recorded
  std::unique_ptr<SimLanes> lanes_;  // null: ends are not recorded
  SlowCompute compute_;
  std::unique_ptr<SimGpuWork> gpu_work_;  // null: no peer reads memory of its GPUs
  std::unique_ptr<SimGpuNic> nic_;        // null: NICs access no memory of GPUs
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Task>> tasks_, given_back_;
  std::vector<std::shared_ptr<Task>> read_;     // likewise, by streams
  std::vector<std::unique_ptr<Task>> refused_;  // streams may still read their tensors
  uint64_t early_ends_ = 0;
  std::vector<std::size_t> order_;
  std::size_t phase_ = 0, next_ = 0, changes_made_ = 0;
  std::size_t open_ = 0;  // tasks that are not done
  bool failed_ = false, left_ = false, ended_ = false, asleep_ = false;
  Nanoseconds deadline_ = 0, heartbeat_ = 0, leave_deadline_ = kNever;
  std::map<std::size_t, int64_t> last_joined_;  // by phase
  uint64_t plans_printed_ = 0, plans_left_printed_ = 0;
  std::string wrong_, unnamed_, overslept_;
};

}  // namespace rdmacoll
