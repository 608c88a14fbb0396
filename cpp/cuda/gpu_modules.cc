#include "cuda/gpu_modules.h"

#include <string>

#include "base/text.h"

namespace rdmacoll::cuda {

GpuModules::~GpuModules() {
  if (gpus_->driver().is_forked_child()) return;
  for (const auto& [key, loaded] : loaded_) {
    if (loaded.module == nullptr) continue;
    const ScopedContext scope(*gpus_, key.first);
    if (scope.status().ok()) gpus_->driver().call.cuModuleUnload(loaded.module);
  }
}

void GpuModules::prepare(Gpu gpu) {
  for (const int kernel : copy_kernels()) (void)find(gpu, kernel);
}

FunctionHandle GpuModules::find(Gpu gpu, int kernel) {
  {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = loaded_.try_emplace({gpu, kernel});
    if (!is_new) return entry->second.function;
  }
  const Status status =
      thread_.post([self = shared_from_this(), gpu, kernel] { self->load_and_log(gpu, kernel); });
  if (!status.ok()) log_.warning(status.message());
  return nullptr;
}

Status GpuModules::load(Gpu gpu, int kernel) {
  {
    const std::lock_guard lock(mutex_);
    const Loaded& known = loaded_[{gpu, kernel}];
    if (known.was_tried) return known.status;
  }
  const Loaded loaded = try_to_load(gpu, kernels()[static_cast<std::size_t>(kernel)]);
  const std::lock_guard lock(mutex_);
  loaded_[{gpu, kernel}] = loaded;
  return loaded.status;
}

void GpuModules::load_and_log(Gpu gpu, int kernel) {
  const Status status = load(gpu, kernel);
  if (status.ok()) return;
  log_.warning(cat(status.message(), kSlowerCopies));
}

void GpuModules::say_not_launched(const Status& status) {
  if (!has_logged_launch_.exchange(true)) log_.warning(cat(status.message(), kSlowerCopies));
}

GpuModules::Loaded GpuModules::try_to_load(Gpu gpu, const Kernel& kernel) const {
  const Driver& driver = gpus_->driver();
  Loaded loaded{.was_tried = true};
  const ScopedContext scope(*gpus_, gpu);
  if (!scope.status().ok()) {
    loaded.status = scope.status();
    return loaded;
  }
  Result result = driver.call.cuModuleLoadData(&loaded.module, kernel.ptx);
  if (result == kSuccess) {
    result = driver.call.cuModuleGetFunction(&loaded.function, loaded.module,
                                             std::string(kernel.name).c_str());
  }
  if (result == kSuccess) return loaded;
  loaded.function = nullptr;
  loaded.status = driver.error(
      result, cat("loading the kernel ", kernel.name, " on ", gpus_->facts(gpu).text()));
  return loaded;
}

}  // namespace rdmacoll::cuda
