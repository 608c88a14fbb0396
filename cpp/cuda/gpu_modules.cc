#include "cuda/gpu_modules.h"

#include <string>

#include "base/text.h"

namespace rdmacoll::cuda {

Result load_kernel(const Functions& call, const Kernel& kernel, ModuleHandle& module,
                   FunctionHandle& function) {
  const Result result = call.cuModuleLoadData(&module, kernel.ptx);
  if (result != kSuccess) return result;
  return call.cuModuleGetFunction(&function, module, std::string(kernel.name).c_str());
}

GpuModules::~GpuModules() {
  if (gpus_.driver().is_forked_child()) return;
  for (const auto& [key, loaded] : loaded_) {
    if (loaded.module == nullptr) continue;
    const ScopedContext scope(gpus_, key.first);
    if (scope.status().ok()) gpus_.driver().call.cuModuleUnload(loaded.module);
  }
}

void GpuModules::prepare(Gpu gpu) {
  std::atomic<bool>& is_prepared = are_prepared_[static_cast<std::size_t>(gpu)];
  if (is_prepared.load(std::memory_order_relaxed) || is_prepared.exchange(true)) return;
  for (const int kernel : copy_kernels()) (void)find(gpu, kernel);
}

FunctionHandle GpuModules::find(Gpu gpu, int kernel) {
  std::unique_lock lock(mutex_);
  const auto [entry, is_new] = loaded_.try_emplace({gpu, kernel});
  if (!is_new) return entry->second.function;
  lock.unlock();  // no other thread waits for the driver meanwhile
  Loaded loaded;
  load(gpu, kernels()[static_cast<std::size_t>(kernel)], loaded);
  lock.lock();
  entry->second = loaded;
  return loaded.function;
}

void GpuModules::load(Gpu gpu, const Kernel& kernel, Loaded& loaded) const {
  const Driver& driver = gpus_.driver();
  const ScopedContext scope(gpus_, gpu);
  if (!scope.status().ok()) return;
  const Result result = load_kernel(driver.call, kernel, loaded.module, loaded.function);
  if (result == kSuccess) return;
  loaded.function = nullptr;
  log_.warning(cat(
      driver.error(result, cat("loading the kernel ", kernel.name, " on ", gpus_.facts(gpu).text()))
          .message(),
      " Many small tensors are copied more slowly without."));
}

}  // namespace rdmacoll::cuda
