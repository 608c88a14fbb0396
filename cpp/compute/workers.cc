#include "compute/workers.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>

#include "base/text.h"
#include "base/time_slice.h"

namespace rdmacoll {
namespace {

// The bytes that a worker takes at a time, some tens of microseconds of work. Taking them is then
// cheap in comparison, and the workers end a job together. Every element size divides it.
constexpr std::size_t kGrainBytes = 256 << 10;
// The bytes that the polling thread touches at a time, since transfers wait meanwhile. With many
// sources it still takes the second number of bytes of the result.
constexpr std::size_t kPollersBytes = 192 << 10;
constexpr std::size_t kPollersGrainMin = 4 << 10;

// Workers block signals, which belong to the program's own threads (Python's handlers run on its
// main one).
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

uint16_t WorkerCompute::Queue::pop() {
  RC_ASSERT(count_ > 0);
  const uint16_t slot = slots_[first_];
  first_ = (first_ + 1) % kJobsMax;
  --count_;
  return slot;
}

WorkerCompute::WorkerCompute(int workers, std::function<void()> wake, WorkerLimits limits)
    : wake_(std::move(wake)), limits_(limits) {
  RC_ASSERT(workers >= 1, cat(workers, " workers"));
  for (uint16_t slot = 0; slot < kJobsMax; ++slot) free_.push(slot);
  const BlockedSignals blocked;
  threads_.reserve(static_cast<std::size_t>(workers));
  try {
    for (int i = 0; i < workers; ++i) {
      threads_.emplace_back([this] { work(); });
      ::pthread_setname_np(threads_.back().native_handle(), cat("rdmacoll-w", i).c_str());
    }
  } catch (const std::system_error&) {
    // A limit on threads was reached: continue with the threads that started.
  }
}

WorkerCompute::~WorkerCompute() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_to_do_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status WorkerCompute::submit(const ComputeJob& job) {
  std::size_t bytes = 0;
  Status status = measure(job, bytes);
  std::unique_lock lock(mutex_);
  if (free_.empty()) return Status::busy();
  const uint16_t index = free_.pop();
  count(job, bytes);
  Slot& slot = slots_[index];
  slot = {job, bytes, 0, 0, status};
  if (bytes == 0 || !status.ok() || is_small(job, bytes)) {
    lock.unlock();  // no other thread knows the slot
    if (status.ok()) slot.status = perform(job, 0, bytes, workspace_);
    lock.lock();
    report_end(index);
    return {};
  }
  waiting_.push(index);
  const std::size_t waiting = waiting_bytes_ += slot.touched(bytes);
  lock.unlock();
  if (waiting > limits_.alone) {
    if (bytes > kGrainBytes) {
      work_to_do_.notify_all();
    } else {
      work_to_do_.notify_one();
    }
  }
  return {};
}

Status WorkerCompute::perform_at_once(const ComputeJob& job, std::size_t bytes) {
  if (!is_small(job, bytes)) return Status::busy();
  count(job, bytes);
  return perform(job, 0, bytes, workspace_);
}

bool WorkerCompute::hand_over(std::function<void()> task) {
  if (threads_.empty()) return false;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  work_to_do_.notify_one();
  return true;
}

void WorkerCompute::work() {
  ShortTimeSlice short_slice;
  short_slice.begin();
  Workspace workspace;
  std::unique_lock lock(mutex_);
  while (true) {
    work_to_do_.wait(lock, [this] { return stopping_ || !tasks_.empty() || !waiting_.empty(); });
    if (!tasks_.empty()) {  // first: a task is short, and a caller waits for it
      run_task(lock);
      continue;
    }
    if (stopping_) return;
    perform_grain(kGrainBytes, workspace, lock);
  }
}

void WorkerCompute::perform_grain(std::size_t most, Workspace& workspace,
                                  std::unique_lock<std::mutex>& lock) {
  const uint16_t index = waiting_.front();
  Slot& slot = slots_[index];
  const std::size_t first = slot.next;
  const std::size_t bytes = std::min(most, slot.bytes - first);
  slot.next += bytes;
  waiting_bytes_ -= slot.touched(bytes);
  ++slot.grains_out;
  if (slot.next == slot.bytes) waiting_.pop();
  lock.unlock();
  Status status = perform(slot.job, first, bytes, workspace);
  lock.lock();
  finish_grain(slot, index, std::move(status), lock);
}

void WorkerCompute::run_task(std::unique_lock<std::mutex>& lock) {
  ++tasks_running_;
  {
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
  }
  lock.lock();
  has_ended_tasks_ = true;
  wake_sleeper(lock);
  --tasks_running_;
  if (tasks_.empty() && tasks_running_ == 0) tasks_ended_.notify_all();
}

void WorkerCompute::finish_tasks() {
  const auto is_this = [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  };
  if (std::any_of(threads_.begin(), threads_.end(), is_this)) return;
  std::unique_lock lock(mutex_);
  tasks_ended_.wait(lock, [this] { return tasks_.empty() && tasks_running_ == 0; });
}

void WorkerCompute::wake_sleeper(std::unique_lock<std::mutex>& lock) {
  if (!std::exchange(armed_, false)) return;
  lock.unlock();
  wake_();
  lock.lock();
}

void WorkerCompute::finish_grain(Slot& slot, uint16_t index, Status status,
                                 std::unique_lock<std::mutex>& lock) {
  --slot.grains_out;
  if (!status.ok() && slot.status.ok()) {
    slot.status = std::move(status);
    // The rest of the job would fail as well. While bytes are left, the slot is still the front
    // one.
    if (slot.next < slot.bytes) {
      RC_ASSERT(waiting_.front() == index);
      drop_rest(slot);
    }
  }
  if (slot.grains_out > 0 || slot.next < slot.bytes) return;
  report_end(index);
  wake_sleeper(lock);
}

void WorkerCompute::report_end(uint16_t index) {
  done_.push(index);
  done_count_.store(done_.size(), std::memory_order_relaxed);
}

void WorkerCompute::drop_rest(Slot& front) {
  waiting_bytes_ -= front.touched(front.bytes - front.next);
  front.next = front.bytes;
  waiting_.pop();
}

void WorkerCompute::drop_waiting() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty()) {
    const uint16_t index = waiting_.front();
    Slot& slot = slots_[index];
    drop_rest(slot);
    if (slot.status.ok()) slot.status = {Code::failed, "the job was dropped"};
    if (slot.grains_out > 0) continue;  // the thread that ends the last one reports it
    report_end(index);
  }
}

bool WorkerCompute::poll(ComputeSink& sink) {
  const bool helps = waiting_bytes_.load(std::memory_order_relaxed) > 0;
  if (!helps && done_count_.load(std::memory_order_relaxed) == 0) return false;
  std::size_t ready = 0;
  {
    std::unique_lock lock(mutex_);
    armed_ = false;
    if (!waiting_.empty()) {
      const std::size_t share = kPollersBytes / operands(slots_[waiting_.front()].job);
      perform_grain(std::max(kPollersGrainMin, share / kPollersGrainMin * kPollersGrainMin),
                    workspace_, lock);
    }
    ready = done_.size();
  }
  for (std::size_t i = 0; i < ready; ++i) {
    uint64_t cookie = 0;
    Status status;
    {
      const std::lock_guard lock(mutex_);
      const uint16_t index = done_.pop();
      cookie = slots_[index].job.cookie;
      status = std::exchange(slots_[index].status, {});
      free_.push(index);
      done_count_.store(done_.size(), std::memory_order_relaxed);
    }
    sink.computed(cookie, status);  // this may submit
  }
  return true;
}

bool WorkerCompute::arm() {
  const std::lock_guard lock(mutex_);
  armed_ = !std::exchange(has_ended_tasks_, false) && done_.empty() && waiting_.empty();
  return armed_;
}

}  // namespace rdmacoll
