// A thread for calls of the driver that wait for kernels of the program: those that load kernels,
// free memory, or open and close memory of other processes. No other thread of the engine makes
// such calls, since a kernel may wait for another rank, and that one for this engine.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/status.h"

namespace rdmacoll::cuda {

// A queue of tasks and the thread that runs them, which starts with the first task. Any thread may
// post tasks.
class DriverThread {
 public:
  DriverThread();
  ~DriverThread() { (void)stop(); }
  DriverThread(const DriverThread&) = delete;
  DriverThread& operator=(const DriverThread&) = delete;

  // Runs the tasks one after the other. A task shares the ownership of all that it uses, since it
  // may outlive this object. Fails if no thread can be started.
  Status post(std::function<void()> task);
  // Waits until all tasks have ended. False: some have not after `limit`.
  bool finish(Nanoseconds limit = 60 * kSecond);
  // Lets the thread drop the tasks that have not begun, in their order and after the one that has,
  // and waits for that. False: after `limit` the driver has not returned. Then the thread ends by
  // itself. Later tasks are dropped by those who post them.
  bool stop(Nanoseconds limit = 5 * kSecond);

 private:
  struct Queue;

  const std::shared_ptr<Queue> queue_;
  std::mutex mutex_;  // guards thread_
  std::thread thread_;
};

}  // namespace rdmacoll::cuda
