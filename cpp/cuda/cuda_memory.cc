#include "cuda/cuda_memory.h"

#include <utility>

namespace rdmacoll::cuda {

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
      kinds_(*gpus_, options.log),
      modules_(*gpus_, options.log),
      orders_(gpus_, events_, sleeper_),
      pinned_(*gpus_, options.pool, options.log),
      work_(gpus_, options.log),
      parts_{*gpus_, *events_, modules_, pinned_, options.pool, *device_pool_, sleeper_} {}

Status CudaMemory::find(const void* memory, Gpu& gpu) {
  MemoryPlace place;
  RC_RETURN_IF_ERROR(kinds_.look(memory, place));
  gpu = place.gpu;
  if (gpu != kHost) modules_.prepare(gpu);
  return {};
}

Status CudaMemory::order(uint64_t stream, Gpu gpu, std::shared_ptr<StreamOrder>& order) {
  modules_.prepare(gpu);
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
