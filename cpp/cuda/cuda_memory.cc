#include "cuda/cuda_memory.h"

#include <utility>

namespace rdmacoll::cuda {
namespace {

// Reads the machine only if NICs carry data, since this takes a while.
std::shared_ptr<GpuMemory> open_gpu_memory(const Driver& driver, const CudaOptions& options,
                                           const std::shared_ptr<Gpus>& gpus) {
  if (options.nics.empty()) return nullptr;
  GpuSystem system =
      read_gpu_system({.cuda_library = options.library, .nvml_library = options.nvml_library});
  // Neither /sys nor NVML may show the GPUs in a container.
  if (system.gpus.empty()) (void)add_cuda_facts(driver, system.gpus);
  return std::make_shared<GpuMemory>(
      gpus, direct_ways(std::move(system), options.gpudirect, options.nics));
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
      gpus_(std::make_shared<Gpus>(driver)),
      events_(std::make_shared<EventPool>(driver)),
      sleeper_(std::make_shared<Sleeper>(std::move(options.wake))),
      device_pool_(std::make_shared<DevicePool>(gpus_)),
      gpu_memory_(open_gpu_memory(driver, options, gpus_)),
      kinds_(*gpus_, options.log),
      modules_(std::make_shared<GpuModules>(gpus_, thread_, options.log)),
      sums_(gpus_, modules_, thread_),
      orders_(gpus_, events_, sleeper_),
      pinned_(*gpus_, options.pool, options.log),
      work_(gpus_, sums_, options.log),
      parts_{*gpus_, *events_, *modules_, pinned_, options.pool, sums_, sleeper_} {}

// The driver may wait for a kernel of the program that never ends.
CudaMemory::~CudaMemory() {
  if (thread_.stop()) return;
  log_.warning(
      "the CUDA driver is still loading a kernel of rdmacoll, since it waits for kernels of this "
      "program. Its memory on the GPU stays until they end: end them before shutdown().");
}

Status CudaMemory::find(const void* memory, Gpu& gpu) {
  MemoryPlace place;
  RC_RETURN_IF_ERROR(kinds_.look(memory, place));
  gpu = place.gpu;
  if (gpu == kHost) return {};
  modules_->prepare(gpu);
  return gpu_memory_ == nullptr ? Status() : gpu_memory_->admit(gpu, log_);
}

Status CudaMemory::order(uint64_t stream, Gpu gpu, std::shared_ptr<StreamOrder>& order) {
  modules_->prepare(gpu);
  return orders_.record(stream, gpu, order);
}

std::shared_ptr<std::byte[]> CudaMemory::allocate(Gpu gpu, uint64_t bytes) {
  retired_.sweep(*this);
  std::shared_ptr<std::byte[]> memory;
  const Status status = device_pool_->allocate(gpu, bytes, memory);
  if (!status.ok()) log_.error(status.message());
  return memory;
}

void CudaMemory::retire(std::shared_ptr<std::byte[]> memory, uint64_t stream) {
  retired_.add(*this, std::move(memory), stream);
  retired_.sweep(*this);
}

}  // namespace rdmacoll::cuda
