#include "cuda/sleeper.h"

#include <utility>

namespace rdmacoll::cuda {

void Sleeper::notify() {
  if (!is_armed_.exchange(false)) return;
  const std::lock_guard lock(mutex_);
  if (wake_) wake_();
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
  // The function may run after the engine's end, so it has a reference of its own.
  auto reference = std::make_unique<std::shared_ptr<Sleeper>>(sleeper);
  const auto notify = [](void* context) {
    const std::unique_ptr<std::shared_ptr<Sleeper>> own(
        static_cast<std::shared_ptr<Sleeper>*>(context));
    (*own)->notify();
  };
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuLaunchHostFunc(stream_, notify, reference.get()),
                                  "cuLaunchHostFunc"));
  (void)reference.release();
  return {};
}

// The driver ends a stream after its work, and does not wait here.
void WakeStream::close() {
  const Gpus* const gpus = std::exchange(gpus_, nullptr);
  if (gpus == nullptr || gpus->driver().is_forked_child()) return;
  const ScopedContext scope(*gpus, gpu_);
  if (scope.status().ok()) gpus->driver().call.cuStreamDestroy_v2(stream_);
}

}  // namespace rdmacoll::cuda
