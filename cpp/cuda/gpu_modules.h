// The modules of the device kernels, by GPU. The driver compiles a module when it is loaded, and
// may wait for kernels that run meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "cuda/gpus.h"
#include "cuda/kernel_library.h"

namespace rdmacoll::cuda {

// The current context gets the module, also after an error at the function.
Result load_kernel(const Functions& call, const Kernel& kernel, ModuleHandle& module,
                   FunctionHandle& function);

// Any thread may call it.
class GpuModules {
 public:
  GpuModules(const Gpus& gpus, Log log) : gpus_(gpus), log_(log) {}
  ~GpuModules();
  GpuModules(const GpuModules&) = delete;
  GpuModules& operator=(const GpuModules&) = delete;

  // Loads the kernels that copy, at the first call for a GPU. Call it on a thread of the program,
  // so that the engine's thread need not wait.
  void prepare(Gpu gpu);
  // Returns a kernel, which is loaded if no thread has loaded it. Null: the driver has refused it,
  // or another thread loads it now. A refusal is logged once, and the kernel is not tried again.
  FunctionHandle find(Gpu gpu, int kernel);

 private:
  struct Loaded {
    ModuleHandle module = nullptr;
    FunctionHandle function = nullptr;
  };

  void load(Gpu gpu, const Kernel& kernel, Loaded& loaded) const;

  const Gpus& gpus_;
  const Log log_;
  std::array<std::atomic<bool>, Gpus::kGpusMax> are_prepared_{};
  std::mutex mutex_;
  std::map<std::pair<Gpu, int>, Loaded> loaded_;
};

}  // namespace rdmacoll::cuda
