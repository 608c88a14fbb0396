// Memory of GPUs in a Session.
#include "api/session.h"
#include "cuda/cuda_memory.h"
#include "cuda/gpu_compute.h"

namespace rdmacoll {

Status Session::device_memory(DeviceMemory*& memory) {
  const std::lock_guard lock(device_memory_mutex_);
  if (device_memory_ == nullptr) {
    std::unique_ptr<cuda::CudaMemory> opened;
    RC_RETURN_IF_ERROR(cuda::CudaMemory::open(
        {config_.cuda_library, *pool_, log_, [this] { driver_->wake(); }}, opened));
    auto compute = std::make_unique<cuda::GpuCompute>(std::move(compute_), clock_);
    compute->open(opened->parts());
    compute_ = std::move(compute);
    engine_->use(*compute_, opened->work());
    device_memory_ = std::move(opened);
  }
  memory = device_memory_.get();
  return {};
}

}  // namespace rdmacoll
