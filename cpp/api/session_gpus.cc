// Memory of GPUs in a Session.
#include "api/session.h"
#include "base/text.h"
#include "cuda/cuda_memory.h"
#include "cuda/gpu_compute.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kMiB = 1 << 20;

}  // namespace

// A job in which no data goes through a NIC can force nothing. Shared memory needs no NIC.
Status Session::check_forced_way() const {
  const GpuDirectSetting& setting = config_.gpudirect;
  const bool is_forced =
      setting.send == GpuDirectMode::force || setting.receive == GpuDirectMode::force;
  if (!is_forced || world_.size() == 1 || fabric_->via_nic() || fabric_->shares_memory()) {
    return {};
  }
  return {Code::invalid, cat("RDMACOLL_GPUDIRECT=", setting.text(), ", but data goes over ",
                             fabric_->transport_name(),
                             ", which no NIC moves by itself. Use RDMA (\"rdmacoll doctor\" tells "
                             "why it is not used), or set RDMACOLL_GPUDIRECT=auto.")};
}

Status Session::device_memory(DeviceMemory*& memory) {
  const std::lock_guard lock(device_memory_mutex_);
  if (device_memory_ == nullptr) {
    std::unique_ptr<cuda::CudaMemory> opened;
    RC_RETURN_IF_ERROR(check_forced_way());
    RC_RETURN_IF_ERROR(cuda::CudaMemory::open({.library = config_.cuda_library,
                                               .pool = *pool_,
                                               .log = log_,
                                               .wake = [this] { driver_->wake(); },
                                               .nics = fabric_->nics(),
                                               .gpudirect = config_.gpudirect,
                                               .nvml_library = config_.nvml_library,
                                               .sys = machine_.sys,
                                               .proc = machine_.proc,
                                               .measures_copies = config_.tune != Tune::off},
                                              opened));
    auto compute = std::make_unique<cuda::GpuCompute>(std::move(compute_), clock_);
    compute->open(opened->parts());
    compute_ = std::move(compute);
    engine_->use(*compute_, opened->work());
    if (const std::shared_ptr<cuda::GpuMemory>& gpus = opened->memory_for_nics()) {
      const auto say = [log = log_](const std::string& reason) { log.warning(reason); };
      driver_->inspect([&](Engine&) { fabric_->use_gpus({gpus, say}); });
    }
    device_memory_ = std::move(opened);
  }
  memory = device_memory_.get();
  return {};
}

// The ways that memory of GPUs has taken so far. "" without such memory.
std::string Session::gpu_summary() {
  {
    // Not held below: the thread with the baton may free memory of a GPU, which takes the mutex.
    const std::lock_guard lock(device_memory_mutex_);
    if (device_memory_ == nullptr) return "";
  }
  Transport::Counters wire;
  GpuCounters gpus;
  driver_->inspect([&](Engine&) {
    wire = fabric_->counters();
    gpus = compute_->gpu_counters();
  });
  const std::shared_ptr<cuda::GpuMemory>& for_nics = device_memory_->memory_for_nics();
  const auto amount = [](uint64_t bytes) {
    return bytes_text(bytes < kMiB ? bytes : (bytes + kMiB / 2) / kMiB * kMiB);
  };
  return cat(", memory of GPUs: ", amount(wire.gpu_bytes_sent), " sent and ",
             amount(wire.gpu_bytes_received), " received direct, ", amount(gpus.bytes_staged),
             " staged, ", amount(gpus.bytes_between_gpus), " read from other GPUs",
             for_nics == nullptr ? "" : cat(" (", for_nics->summary(), ")"));
}

}  // namespace rdmacoll
