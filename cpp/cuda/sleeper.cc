#include "cuda/sleeper.h"

#include <cstdint>
#include <map>
#include <utility>

#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

// The sleepers that host functions of the driver will notify. Such a function may run after the
// engine's end, or never if the GPU has a fault.
class Expected {
 public:
  void* add(std::shared_ptr<Sleeper> sleeper) {
    const std::lock_guard lock(mutex_);
    sleepers_.emplace(++last_, std::move(sleeper));
    return reinterpret_cast<void*>(last_);
  }
  std::shared_ptr<Sleeper> take(void* number) {
    const std::lock_guard lock(mutex_);
    auto node = sleepers_.extract(reinterpret_cast<uintptr_t>(number));
    return node.empty() ? nullptr : std::move(node.mapped());
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, std::shared_ptr<Sleeper>> sleepers_;
  uintptr_t last_ = 0;
};

Expected& expected() {
  static auto& all = *new Expected;  // threads of the driver may outlive static objects
  return all;
}

void notify(void* number) {
  if (const std::shared_ptr<Sleeper> sleeper = expected().take(number)) sleeper->notify();
}

}  // namespace

void Sleeper::notify() {
  if (!is_armed_.exchange(false)) return;
  const std::lock_guard lock(mutex_);
  if (wake_) wake_();
}

void Sleeper::say_not_notified(const Status& status) {
  if (has_logged_.exchange(true)) return;
  log_.warning(cat(status.message(),
                   " So nothing wakes rdmacoll when work on GPUs ends. It looks every 10 ms, and "
                   "keeps a core busy while it waits for a stream of the program."));
}

void Sleeper::close() {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

Status WakeStream::notify_after(const Gpus& gpus, Gpu gpu, EventHandle event,
                                const std::shared_ptr<Sleeper>& sleeper) {
  const Driver& driver = gpus.driver();
  if (gpus_ == nullptr) {
    const ScopedContext scope(gpus, gpu);
    RC_RETURN_IF_ERROR(scope.status());
    RC_RETURN_IF_ERROR(
        driver.check(driver.call.cuStreamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate"));
    gpus_ = &gpus;
    gpu_ = gpu;
  }
  const ScopedContext scope(gpus, gpu_);
  RC_RETURN_IF_ERROR(scope.status());
  RC_RETURN_IF_ERROR(
      driver.check(driver.call.cuStreamWaitEvent(stream_, event, 0), "cuStreamWaitEvent"));
  void* const number = expected().add(sleeper);
  Status status =
      driver.check(driver.call.cuLaunchHostFunc(stream_, notify, number), "cuLaunchHostFunc");
  if (!status.ok()) (void)expected().take(number);
  return status;
}

// The driver ends a stream after its work, and does not wait here.
void WakeStream::close() {
  const Gpus* const gpus = std::exchange(gpus_, nullptr);
  if (gpus == nullptr || gpus->driver().is_forked_child()) return;
  const ScopedContext scope(*gpus, gpu_);
  if (scope.status().ok()) gpus->driver().call.cuStreamDestroy_v2(stream_);
}

Status WakeStreams::notify_after(const Key& key, const Gpus& gpus, EventHandle event,
                                 const std::shared_ptr<Sleeper>& sleeper) {
  const Gpu gpu = std::get<Gpu>(key);
  const std::lock_guard lock(mutex_);
  Used& used = used_[key];
  if (used.stream == nullptr) {
    std::vector<std::unique_ptr<WakeStream>>& idle = idle_[gpu];
    if (idle.empty()) idle.push_back(std::make_unique<WakeStream>());
    used.stream = std::move(idle.back());
    idle.pop_back();
  }
  ++used.events;
  const Status status = used.stream->notify_after(gpus, gpu, event, sleeper);
  if (!status.ok()) leave(key, false);
  return status;
}

void WakeStreams::release(const Key& key, bool has_passed) {
  const std::lock_guard lock(mutex_);
  leave(key, has_passed);
}

// A stream that may still wait would delay the wake-ups of its next user, so it ends.
void WakeStreams::leave(const Key& key, bool has_passed) {
  const auto found = used_.find(key);
  Used& used = found->second;
  used.may_wait = used.may_wait || !has_passed;
  if (--used.events > 0) return;
  if (!used.may_wait) idle_[std::get<Gpu>(key)].push_back(std::move(used.stream));
  used_.erase(found);
}

}  // namespace rdmacoll::cuda
