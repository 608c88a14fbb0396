// The modules of the device kernels, by GPU. The driver compiles a module when it is loaded, and
// waits for kernels that run meanwhile. So a thread of its own loads them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "cuda/driver_thread.h"
#include "cuda/gpus.h"
#include "cuda/kernel_library.h"

namespace rdmacoll::cuda {

// Any thread may call it. Tasks of the thread share its ownership.
class GpuModules : public std::enable_shared_from_this<GpuModules> {
 public:
  // The thread outlives all calls but load().
  GpuModules(std::shared_ptr<Gpus> gpus, DriverThread& thread, Log log)
      : gpus_(std::move(gpus)), thread_(thread), log_(log) {}
  ~GpuModules();
  GpuModules(const GpuModules&) = delete;
  GpuModules& operator=(const GpuModules&) = delete;

  // Lets the thread load the kernels that copy, at the first call for a GPU.
  void prepare(Gpu gpu);
  // Returns a kernel. Null: it is not loaded, and the thread loads it at the first call. A refusal
  // is logged once, and the kernel is not tried again.
  FunctionHandle find(Gpu gpu, int kernel);
  // Loads a kernel on the calling thread, which waits for kernels that run. Only tasks of the
  // thread call it. Fails if the driver refuses the kernel, or has refused it before.
  Status load(Gpu gpu, int kernel);
  // Says once that copies go on without a kernel, which the driver does not start.
  void say_not_launched(const Status& status);

 private:
  struct Loaded {
    ModuleHandle module = nullptr;
    FunctionHandle function = nullptr;  // null: not loaded yet, or refused
    bool was_tried = false;
    Status status;  // the driver's refusal
  };

  void load_and_log(Gpu gpu, int kernel);
  Loaded try_to_load(Gpu gpu, const Kernel& kernel) const;

  const std::shared_ptr<Gpus> gpus_;
  DriverThread& thread_;
  const Log log_;
  std::mutex mutex_;
  std::map<std::pair<Gpu, int>, Loaded> loaded_;
  std::atomic<bool> has_logged_launch_{false};
};

}  // namespace rdmacoll::cuda
