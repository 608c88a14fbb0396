#include "cuda/gpu_sums.h"

#include <utility>

#include "base/text.h"
#include "cuda/small_arrays.h"

namespace rdmacoll::cuda {

// The thread writes it until `state` says that it has ended.
struct GpuSums::Entry {
  Entry(std::shared_ptr<Gpus> all, Gpu own) : gpus(std::move(all)), gpu(own) {}
  ~Entry() {
    if (scratch == 0 || gpus->driver().is_forked_child()) return;
    const ScopedContext scope(*gpus, gpu);
    if (scope.status().ok()) gpus->driver().call.cuMemFree_v2(scratch);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  Status prepare(GpuModules& modules) {
    for (std::size_t kernel = 0; kernel < kernels().size(); ++kernel) {
      RC_RETURN_IF_ERROR(modules.load(gpu, static_cast<int>(kernel)));
    }
    const Driver& driver = gpus->driver();
    const ScopedContext scope(*gpus, gpu);
    RC_RETURN_IF_ERROR(scope.status());
    RC_RETURN_IF_ERROR(driver.check(
        driver.call.cuMemAlloc_v2(&scratch, kScratchBytes),
        cat("cuMemAlloc of ", bytes_text(kScratchBytes), " on ", gpus->facts(gpu).text())));
    StartCosts costs;
    RC_RETURN_IF_ERROR(measure(*gpus, gpu, scratch, modules.find(gpu, write_word_kernel()), costs));
    bytes_min = bytes_summed_on_gpus(costs);
    return {};
  }

  const std::shared_ptr<Gpus> gpus;
  const Gpu gpu;
  std::atomic<State> state{State::preparing};
  Status status;
  Address scratch = 0;
  uint64_t bytes_min = 0;
};

GpuSums::State GpuSums::prepare(Gpu gpu) {
  std::shared_ptr<Entry>& own = entries_[static_cast<std::size_t>(gpu)];
  if (own != nullptr) return own->state.load(std::memory_order_acquire);
  own = std::make_shared<Entry>(gpus_, gpu);
  const auto end = [](Entry& entry, Status status) {
    entry.status = std::move(status);
    entry.state.store(entry.status.ok() ? State::ready : State::refused, std::memory_order_release);
  };
  Status posted =
      run([entry = own, modules = modules_, end] { end(*entry, entry->prepare(*modules)); });
  if (!posted.ok()) end(*own, std::move(posted));
  return own->state.load(std::memory_order_acquire);
}

Status GpuSums::run(std::function<void()> task) {
  begun_.fetch_add(1, std::memory_order_relaxed);
  const Status posted = thread_.post([task = std::move(task), version = version_] {
    task();
    version->fetch_add(1, std::memory_order_release);
  });
  if (!posted.ok()) version_->fetch_add(1, std::memory_order_release);
  return posted;
}

const Status& GpuSums::refusal(Gpu gpu) const { return entry(gpu)->status; }
uint64_t GpuSums::bytes_min(Gpu gpu) const { return entry(gpu)->bytes_min; }

Piece GpuSums::scratch(Gpu gpu) const {
  const std::shared_ptr<Entry>& own = entry(gpu);
  if (own == nullptr || own->state.load(std::memory_order_acquire) != State::ready) return {};
  return {reinterpret_cast<std::byte*>(own->scratch), kScratchBytes, gpu};
}

}  // namespace rdmacoll::cuda
