// Threads that reduce and copy. A job is cut into grains that the workers share, so that one large
// job uses them all. Jobs end in any order. The polling thread takes grains, too: a woken thread
// comes late, and may push another rank's thread off its core. Workers are therefore woken only for
// work that piles up.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "compute/compute.h"
#include "compute/job.h"

namespace rdmacoll {

// All in bytes that jobs touch, in every source and in the result, counted as equally wide.
struct WorkerLimits {
  // Up to this many, a hand-over between threads takes longer than the work, so submit() does it.
  std::size_t at_once = 64 << 10;
  // Up to this many, in all jobs that no thread has taken, the polling thread gets no help.
  std::size_t alone = 256 << 10;
};

class WorkerCompute final : public Compute {
 public:
  // Starts up to `workers` threads. `wake` is called on a worker's thread, once after each arm()
  // that returned true. If a limit refuses some threads, the others do the work; if there are none,
  // submit() does.
  WorkerCompute(int workers, std::function<void()> wake, WorkerLimits limits = {});
  // Lets the workers end their present grain, and all tasks. Jobs that are not done are not
  // reported.
  ~WorkerCompute() override;
  WorkerCompute(const WorkerCompute&) = delete;
  WorkerCompute& operator=(const WorkerCompute&) = delete;

  Status submit(const ComputeJob& job) override;
  Status perform_at_once(const ComputeJob& job, std::size_t bytes) override;
  bool poll(ComputeSink& sink) override;
  bool hand_over(std::function<void()> task) override;
  void finish_tasks() override;
  bool arm() override;
  void drop_waiting() override;
  int workers() const { return static_cast<int>(threads_.size()); }

 private:
  static std::size_t operands(const ComputeJob& job) { return job.sources.size() + 1; }
  struct Slot {
    ComputeJob job;
    std::size_t bytes = 0;       // bytes of the result
    std::size_t next = 0;        // the first byte that no thread has taken
    std::size_t grains_out = 0;  // grains taken and not finished
    Status status;

    std::size_t touched(std::size_t of_result) const { return of_result * operands(job); }
  };
  // The largest number of jobs submitted and not yet reported. Beyond it, submit() is busy.
  static constexpr std::size_t kJobsMax = 256;
  // A queue of slot numbers that never allocates.
  class Queue {
   public:
    bool empty() const { return count_ == 0; }
    std::size_t size() const { return count_; }
    uint16_t front() const { return slots_[first_]; }
    void push(uint16_t slot) { slots_[(first_ + count_++) % kJobsMax] = slot; }
    uint16_t pop();

   private:
    std::array<uint16_t, kJobsMax> slots_{};
    std::size_t first_ = 0;
    std::size_t count_ = 0;
  };

  bool is_small(const ComputeJob& job, std::size_t bytes) const {
    return threads_.empty() || bytes * operands(job) <= limits_.at_once;
  }
  void work();
  // Performs the next grain of the front job: up to `most` bytes of its result.
  void perform_grain(std::size_t most, Workspace& workspace, std::unique_lock<std::mutex>& lock);
  void run_task(std::unique_lock<std::mutex>& lock);
  void wake_sleeper(std::unique_lock<std::mutex>& lock);
  void drop_rest(Slot& front);
  void report_end(uint16_t index);
  void finish_grain(Slot& slot, uint16_t index, Status status, std::unique_lock<std::mutex>& lock);

  const std::function<void()> wake_;
  const WorkerLimits limits_;
  Workspace workspace_;  // for the thread that submits and polls
  std::array<Slot, kJobsMax> slots_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards all below, and the slots
  std::condition_variable work_to_do_;
  std::condition_variable tasks_ended_;
  std::deque<std::function<void()>> tasks_;
  std::size_t tasks_running_ = 0;
  bool has_ended_tasks_ = false;  // since the last arm(), for a caller that sleeps
  Queue free_;
  Queue waiting_;  // jobs with bytes to take; threads work at the front one
  Queue done_;
  bool armed_ = false;
  bool stopping_ = false;
  // These two let poll() look without taking the lock.
  std::atomic<std::size_t> done_count_{0};
  std::atomic<std::size_t> waiting_bytes_{0};  // touched by work that no thread has taken
};

}  // namespace rdmacoll
