// Threads that reduce and copy. A job is cut into grains that the workers share, so that one large
// job uses them all; jobs end in any order. Whoever polls takes grains, too: a thread that is woken
// comes late, and may push another rank's off its core, so workers are woken for what piles up.
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

// All in bytes that jobs touch: those of every source and of the result, taken as equally wide.
struct WorkerLimits {
  // Up to this many, a hand-over between threads takes longer than the work: submit() does it.
  std::size_t at_once = 64 << 10;
  // Up to this many of all jobs that nobody has taken, whoever polls is not helped.
  std::size_t alone = 256 << 10;
};

class WorkerCompute final : public Compute {
 public:
  // `wake` is called on a worker's thread, once after an arm() that returned true. If fewer threads
  // can be started than wished for, fewer do the work; if none, submit() does.
  WorkerCompute(int workers, std::function<void()> wake, WorkerLimits limits = {});
  // Lets the workers end the grain they are at, and all tasks. Jobs that are not done are not
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
    std::size_t bytes = 0;       // of the result
    std::size_t next = 0;        // the first of them that nobody has taken
    std::size_t grains_out = 0;  // taken and not finished
    Status status;

    std::size_t touched(std::size_t of_result) const { return of_result * operands(job); }
  };
  // Jobs submitted and not yet reported; submit() is busy beyond.
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
  // The next grain of the job in front, of up to so many bytes of its result.
  void perform_grain(std::size_t most, Workspace& workspace, std::unique_lock<std::mutex>& lock);
  void run_task(std::unique_lock<std::mutex>& lock);
  void wake_sleeper(std::unique_lock<std::mutex>& lock);
  void drop_rest(Slot& front);
  void tell_end(uint16_t index);
  void finish_grain(Slot& slot, uint16_t index, Status status, std::unique_lock<std::mutex>& lock);

  const std::function<void()> wake_;
  const WorkerLimits limits_;
  Workspace workspace_;  // of the thread that submits and polls
  std::array<Slot, kJobsMax> slots_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards all below, and the slots
  std::condition_variable work_to_do_;
  std::condition_variable tasks_ended_;
  std::deque<std::function<void()>> tasks_;
  std::size_t tasks_running_ = 0;
  bool has_ended_tasks_ = false;  // since the last arm(): whoever sleeps may wait for one
  Queue free_;
  Queue waiting_;  // some bytes are not taken; the front one is worked at
  Queue done_;
  bool armed_ = false;
  bool stopping_ = false;
  // These two let poll() look without the lock.
  std::atomic<std::size_t> done_count_{0};
  std::atomic<std::size_t> waiting_bytes_{0};  // touched by what nobody has taken
};

}  // namespace rdmacoll
