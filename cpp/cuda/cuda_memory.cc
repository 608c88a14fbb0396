#include "cuda/cuda_memory.h"

#include <chrono>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/thread.h"

namespace rdmacoll::cuda {
namespace {

constexpr Nanoseconds kTrimLimit = 2 * kSecond;
// How long the end waits for kernels before it waits for them in calls of the driver.
constexpr Nanoseconds kKernelsLimit = 60 * kSecond;

// Reads the machine only if NICs carry data, since this takes a while.
std::shared_ptr<GpuMemory> open_gpu_memory(const Driver& driver, const CudaOptions& options,
                                           const std::shared_ptr<Gpus>& gpus) {
  if (options.nics.empty()) return nullptr;
  GpuSystem system = read_gpu_system({.sys = options.sys,
                                      .proc = options.proc,
                                      .cuda_library = options.library,
                                      .nvml_library = options.nvml_library});
  // Neither /sys nor NVML may show the GPUs in a container.
  if (system.gpus.empty()) (void)add_cuda_facts(driver, system.gpus);
  return std::make_shared<GpuMemory>(
      gpus, direct_ways(std::move(system), options.gpudirect, options.nics), options.said);
}

// Memory whose end could wait for kernels without a limit.
void keep_for_ever(std::shared_ptr<void> kept) {
  static auto* const all = new std::vector<std::shared_ptr<void>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(kept));
}

}  // namespace

Status CudaMemory::open(CudaOptions options, std::unique_ptr<CudaMemory>& memory) {
  const Driver* driver = nullptr;
  RC_RETURN_IF_ERROR(Driver::open(options.library, driver));
  memory = std::make_unique<CudaMemory>(*driver, std::move(options));
  return {};
}

CudaMemory::CudaMemory(const Driver& driver, CudaOptions options)
    : log_(options.log),
      measures_copies_(options.measures_copies),
      gpus_(std::make_shared<Gpus>(driver)),
      events_(std::make_shared<EventPool>(driver)),
      sleeper_(std::make_shared<Sleeper>(std::move(options.wake), options.log)),
      device_pool_(std::make_shared<DevicePool>(gpus_)),
      arrays_(options.shares_arrays ? std::make_shared<SharedArrays>(gpus_, options.log) : nullptr),
      gpu_memory_(open_gpu_memory(driver, options, gpus_)),
      kinds_(*gpus_, options.log),
      modules_(std::make_shared<GpuModules>(gpus_, thread_, options.log)),
      sums_(gpus_, modules_, thread_),
      bar_writes_(gpus_, thread_, options.gdrcopy_library, options.log),
      copies_(gpus_, thread_, options.log, bar_writes_.probe()),
      orders_(gpus_, events_, sleeper_),
      host_copies_(gpus_, orders_),
      retired_([this](Gpu gpu, const auto& memory) { return free_after_all_work(gpu, memory); }),
      pinned_(*gpus_, options.pool, options.log),
      work_({gpus_, sums_, thread_, copies_, arrays_, options.log}),
      parts_{*gpus_, events_, *modules_, pinned_, options.pool, sums_, sleeper_, &bar_writes_} {}

CudaMemory::~CudaMemory() { (void)thread_.stop(kKernelsLimit); }

void CudaMemory::end(std::unique_ptr<CudaMemory> memory, std::shared_ptr<const void> pool,
                     Nanoseconds limit) {
  if (memory == nullptr) return;
  struct Ending {
    std::unique_ptr<CudaMemory> memory;
    std::shared_ptr<const void> pool;
    std::promise<void> end;
  };
  const Log log = memory->log_;
  const auto awaits_peers = memory->work_.awaits_peers();
  const auto ending = std::make_shared<Ending>();
  ending->memory = std::move(memory);
  ending->pool = std::move(pool);
  std::thread thread;
  const Status started = start_thread(thread, "the thread that frees memory of GPUs", [ending] {
    ending->memory.reset();
    ending->end.set_value();
  });
  if (!started.ok()) {
    log.warning(
        cat(started.message(), " So the memory of rdmacoll on GPUs stays until the process ends."));
    keep_for_ever(ending);
    return;
  }
  const auto end = ending->end.get_future().wait_for(std::chrono::nanoseconds(limit));
  if (end == std::future_status::ready) return thread.join();
  thread.detach();
  log.warning(
      *awaits_peers
          ? "another rank of this node has GPU memory of this rank open, and has not closed it. So "
            "the memory stays until kernels of that rank's program end, or that rank does."
          : "the CUDA driver frees no memory while kernels run, and kernels of this program still "
            "do. So the memory of rdmacoll on GPUs stays until they end. End them before "
            "shutdown().");
}

// The first operations need kernels sooner than costs.
void CudaMemory::prepare(Gpu gpu) {
  modules_->prepare(gpu);
  if (measures_copies_) copies_.prepare(gpu);
}

Status CudaMemory::find(const void* memory, Gpu& gpu) {
  PointerFacts facts;
  RC_RETURN_IF_ERROR(kinds_.look(memory, facts));
  gpu = facts.gpu;
  if (gpu == kHost) return {};
  prepare(gpu);
  return gpu_memory_ == nullptr ? Status() : gpu_memory_->admit(gpu, log_);
}

Status CudaMemory::order(uint64_t stream, Gpu gpu, std::shared_ptr<StreamOrder>& order) {
  prepare(gpu);
  return orders_.record(stream, gpu, order);
}

void CudaMemory::pin(std::span<const HostCopy> copies, Gpu gpu) {
  for (const HostCopy& copy : copies) {
    if (copy.bytes > 0) pinned_.pin(copy.on_host, copy.bytes, gpu);
  }
}

std::shared_ptr<std::byte[]> CudaMemory::allocate(Gpu gpu, uint64_t bytes) {
  retired_.sweep(*this);
  std::shared_ptr<std::byte[]> memory;
  Status status = device_pool_->allocate(gpu, bytes, memory);
  if (!status.ok() && keeps(gpu)) {
    // The thread frees what is kept. It may wait for kernels, which may wait for this caller.
    status = thread_.post([pool = device_pool_, arrays = arrays_, gpu] {
      pool->trim(gpu);
      if (arrays != nullptr) arrays->trim(gpu);
    });
    (void)thread_.finish(kTrimLimit);
    if (status.ok()) status = device_pool_->allocate(gpu, bytes, memory);
  }
  if (!status.ok()) log_.error(status.message());
  return memory;
}

// The driver frees pinned memory only when no kernel runs any more. So the thread lets it free
// some.
bool CudaMemory::free_after_all_work(Gpu gpu, const std::shared_ptr<std::byte[]>& memory) {
  const auto wait = [gpus = gpus_, gpu, memory] {
    const Functions& call = gpus->driver().call;
    const ScopedContext scope(*gpus, gpu);
    void* some = nullptr;
    const bool has_some = scope.status().ok() && call.cuMemHostAlloc(&some, 1, 0) == kSuccess;
    if (!has_some || call.cuMemFreeHost(some) != kSuccess) keep_for_ever(memory);
  };
  return thread_.post(wait).ok();
}

bool CudaMemory::keeps(Gpu gpu) {
  return device_pool_->keeps(gpu) || (arrays_ != nullptr && arrays_->keeps(gpu));
}

std::shared_ptr<std::byte[]> CudaMemory::allocate_array(Gpu gpu, uint64_t bytes) {
  if (arrays_ != nullptr && gpus_->driver().usable().ok()) {
    retired_.sweep(*this);
    if (auto memory = arrays_->allocate(gpu, bytes, thread_)) return memory;
  }
  return allocate(gpu, bytes);
}

void CudaMemory::retire(std::shared_ptr<std::byte[]> memory, uint64_t stream) {
  retired_.add(*this, std::move(memory), stream);
  retired_.sweep(*this);
}

}  // namespace rdmacoll::cuda
