// The door: any thread hands operations over here, the holder of the baton takes them out.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/operation.h"

namespace rdmacoll {

class Submissions {
 public:
  // Refuses a name that is in flight. Numbers the unnamed, by one counter for all kinds, so that an
  // allreduce here against a broadcast there is a mismatch and not a stall.
  Status add(const OperationRef& operation) {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return closed_;
    Request& request = operation->request;
    if (request.name.empty()) {
      request.iteration = unnamed_++;
    } else if (!names_.emplace(request.name, request.iteration).second) {
      ErrorDetail detail;
      detail.tensor = request.name;
      return {Code::duplicate,
              "the name '" + request.name +
                  "' is in flight already. Wait for the first operation, or give another name.",
              detail};
    }
    queue_.push_back(operation);
    waiting_.store(true, std::memory_order_seq_cst);
    return {};
  }

  // Into `operations`, which is empty. Cheap when nothing waits.
  void drain(std::vector<OperationRef>& operations) {
    if (!waiting()) return;
    const std::lock_guard lock(mutex_);
    waiting_.store(false, std::memory_order_relaxed);
    operations.swap(queue_);
  }
  bool waiting() const { return waiting_.load(std::memory_order_seq_cst); }

  // The name may be used again. Before complete(), since the caller may submit it at once.
  void forget(const Operation& operation) {
    if (operation.request.name.empty()) return;
    const std::lock_guard lock(mutex_);
    names_.erase({operation.request.name, operation.request.iteration});
  }

  // From now on every add() is answered with this.
  void close(Status status) {
    const std::lock_guard lock(mutex_);
    closed_ = std::move(status);
  }

 private:
  std::mutex mutex_;
  std::vector<OperationRef> queue_;
  std::set<std::pair<std::string, int64_t>> names_;
  int64_t unnamed_ = 0;
  Status closed_;
  std::atomic<bool> waiting_{false};
};

}  // namespace rdmacoll
