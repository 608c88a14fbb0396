// Counts the updates that an optimizer applies, and calls Python after some of them. Python then
// compares the ranks' weights. An ordinary update costs one atomic addition.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

// The updates of one optimizer. Thread-safe. Lives as long as the process.
class UpdateCount {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  static UpdateCount& of(const std::string& name);

  // Counts one update. Returns true if the update is due for Python.
  bool add() {
    return count_.fetch_add(1, std::memory_order_relaxed) + 1 ==
           due_.load(std::memory_order_acquire);
  }
  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  void set(int64_t count) { count_.store(count, std::memory_order_relaxed); }
  void set_due(int64_t due) { due_.store(due, std::memory_order_release); }

 private:
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> due_{kNever};
};

// The op in graphs. Its attribute is the optimizer's name. It waits for Python in a separate
// thread, so that no thread of TensorFlow is blocked.
class AppliedKernel {
 public:
  static void* create(TF_OpKernelConstruction* construction);
  static void compute(void* kernel, TF_OpKernelContext* context,
                      TF_AsyncOpKernelDoneCallback* done);
  static void destroy(void* kernel);

 private:
  std::string name_;
  UpdateCount* updates_ = nullptr;
};

}  // namespace rdmacoll::tensorflow

extern "C" {
// Called with an optimizer's name and `run`, which is valid until the call returns.
typedef void (*rc_tf_on_applied)(const char* name, void* run);

// Sets the listener. NULL removes it. The function must stay callable until the process ends.
__attribute__((visibility("default"))) void rc_tf_listen_to_updates(rc_tf_on_applied listener);
// Call within the listener: the update fails with this error (JSON).
__attribute__((visibility("default"))) void rc_tf_fail_update(void* run, const char* error_json);
// Counts an eager update. Returns 1 if it is due.
__attribute__((visibility("default"))) int32_t rc_tf_count_update(const char* name);
__attribute__((visibility("default"))) int64_t rc_tf_updates(const char* name);
// Sets the number of the update after which the listener is called.
__attribute__((visibility("default"))) void rc_tf_set_due(const char* name, int64_t due);
__attribute__((visibility("default"))) void rc_tf_set_updates(const char* name, int64_t count);
// Returns a hash of some bytes, for accidental differences only.
__attribute__((visibility("default"))) uint64_t rc_tf_fingerprint(const void* data, uint64_t bytes);
}
