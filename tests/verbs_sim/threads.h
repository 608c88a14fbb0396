// Simulated verbs for ranks that are threads of one process: one lock guards the fabric, and a
// thread steps it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "verbs_sim/fabric.h"

namespace rdmacoll::verbs_sim {

class ThreadedFabric {
 public:
  explicit ThreadedFabric(const FabricPolicy& policy);
  ~ThreadedFabric();  // destroyed after all devices
  ThreadedFabric(const ThreadedFabric&) = delete;
  ThreadedFabric& operator=(const ThreadedFabric&) = delete;

  // As SimFabric::add_host(). The result may be used by any thread.
  rdma::Verbs& add_host(const std::vector<AdapterModel>& adapters, GpusOfHost* gpus = nullptr);
  FabricCounters counters();
  // Calls the function under the lock, to inject a fault.
  void with(const std::function<void(SimFabric&)>& function);

 private:
  class LockedVerbs;
  class LockedDevice;
  class LockedQueuePair;
  class LockedRegistration;

  void run();
  // Runs the function under the lock.
  template <typename Function>
  auto locked(Function&& function) {
    const std::lock_guard lock(mutex_);
    return function();
  }
  // The same, and lets the thread look for work.
  template <typename Function>
  auto posting(Function&& function) {
    auto result = locked(function);
    posted_.notify_one();
    return result;
  }

  SteadyClock clock_;
  std::mutex mutex_;
  std::condition_variable posted_;
  SimFabric fabric_;
  std::vector<std::unique_ptr<rdma::Verbs>> verbs_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace rdmacoll::verbs_sim
