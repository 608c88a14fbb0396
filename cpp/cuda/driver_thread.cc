#include "cuda/driver_thread.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <utility>

#include "base/thread.h"

namespace rdmacoll::cuda {

struct DriverThread::Queue {
  const pid_t owner = ::getpid();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool is_busy = false;
  bool is_stopped = false;
  bool has_ended = false;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return is_stopped || !tasks.empty(); });
      if (is_stopped) break;
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      is_busy = true;
      lock.unlock();
      task();
      task = nullptr;  // with all that it owns
      lock.lock();
      is_busy = false;
      changed.notify_all();
    }
    // The end of a task may tell a peer that the tasks before it have ended.
    while (!tasks.empty()) {
      std::function<void()> dropped = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      dropped = nullptr;
      lock.lock();
    }
    has_ended = true;
    changed.notify_all();
  }
};

DriverThread::DriverThread() : queue_(std::make_shared<Queue>()) {}

Status DriverThread::post(std::function<void()> task) {
  const std::lock_guard starting(mutex_);
  if (!thread_.joinable()) {
    RC_RETURN_IF_ERROR(start_thread(thread_, "the thread for calls of the GPU's driver",
                                    [queue = queue_] { queue->run(); }));
  }
  const std::lock_guard lock(queue_->mutex);
  if (queue_->is_stopped) return {};
  queue_->tasks.push_back(std::move(task));
  queue_->changed.notify_all();
  return {};
}

bool DriverThread::finish(Nanoseconds limit) {
  std::unique_lock lock(queue_->mutex);
  return queue_->changed.wait_for(lock, std::chrono::nanoseconds(limit),
                                  [this] { return queue_->tasks.empty() && !queue_->is_busy; });
}

bool DriverThread::stop(Nanoseconds limit) {
  if (::getpid() != queue_->owner) {  // a forked child has no such thread
    if (thread_.joinable()) thread_.detach();
    return true;
  }
  const std::lock_guard starting(mutex_);
  if (!thread_.joinable()) return true;
  std::unique_lock lock(queue_->mutex);
  queue_->is_stopped = true;
  queue_->changed.notify_all();
  const bool is_in_time = queue_->changed.wait_for(lock, std::chrono::nanoseconds(limit),
                                                   [this] { return queue_->has_ended; });
  lock.unlock();
  if (is_in_time) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return is_in_time;
}

}  // namespace rdmacoll::cuda
