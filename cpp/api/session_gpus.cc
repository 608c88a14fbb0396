// Memory of GPUs in a Session.
#include "api/session.h"
#include "base/text.h"
#include "collectives/choose.h"
#include "cuda/cuda_memory.h"
#include "cuda/direct_ways.h"
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

// Warns of a direct way that is lost whichever GPU this rank will use, and fails if the settings
// force it. CUDA's driver is not opened: a program may still choose its GPU
// (CUDA_VISIBLE_DEVICES), or fork. So the facts that only this driver has, and losses of some GPUs,
// are told with the first array on a GPU.
Status Session::look_at_gpus() {
  const cuda::SystemRoots roots{
      .sys = machine_.sys, .proc = machine_.proc, .nvml_library = config_.nvml_library};
  if (world_.size() == 1 || !cuda::has_gpu_driver(roots)) return {};
  RC_RETURN_IF_ERROR(check_forced_way());
  const std::vector<std::string> nics = fabric_->nics();
  if (nics.empty()) return {};
  cuda::CertainLosses losses =
      cuda::certain_losses(cuda::read_gpu_system_without_cuda(roots), config_.gpudirect, nics);
  if (!losses.warning.empty()) {
    log_.warning(losses.warning);
    said_of_gpus_ = std::move(losses.texts);
  }
  return losses.status;
}

Status Session::device_memory(DeviceMemory*& memory) {
  const std::lock_guard lock(device_memory_mutex_);
  if (device_memory_ == nullptr) {
    std::unique_ptr<cuda::CudaMemory> opened;
    RC_RETURN_IF_ERROR(check_forced_way());
    const bool shares_arrays = config_.cuda_ipc != CudaIpc::off && world_.local_size() > 1;
    RC_RETURN_IF_ERROR(cuda::CudaMemory::open({.library = config_.cuda_library,
                                               .pool = *pool_,
                                               .log = log_,
                                               .wake = [this] { driver_->wake(); },
                                               .nics = fabric_->nics(),
                                               .gpudirect = config_.gpudirect,
                                               .nvml_library = config_.nvml_library,
                                               .sys = machine_.sys,
                                               .proc = machine_.proc,
                                               .said = said_of_gpus_,
                                               .measures_copies = config_.tune != Tune::off,
                                               .shares_arrays = shares_arrays,
                                               .gdrcopy_library = config_.gdrcopy_library},
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

// NICs that access the memory register it now, and keep the registration while they have room.
// Smaller arrays are staged.
Status Session::allocate(int gpu, uint64_t bytes, std::shared_ptr<std::byte[]>& memory) {
  DeviceMemory* gpus = nullptr;
  Gpu number = kHost;
  RC_RETURN_IF_ERROR(device_memory(gpus));
  RC_RETURN_IF_ERROR(gpus->use(gpu, number));
  memory = gpus->allocate_array(number, bytes);
  if (memory == nullptr) {
    return {Code::invalid,
            cat("cuda:", gpu, " has no ", bytes, " bytes of memory left: free arrays there.")};
  }
  const Piece piece{memory.get(), bytes, number};
  driver_->inspect([&](Engine&) {
    const bool is_worth_it = bytes >= Tuning().gpu_direct_bytes && fabric_->gpu_ways(number).any();
    if (is_worth_it && fabric_->pin(piece)) fabric_->unpin(piece);
  });
  return {};
}

Status Session::copy(std::span<const HostCopy> copies, CopyTo to, int gpu, uint64_t stream) {
  DeviceMemory* memory = nullptr;
  Gpu number = kHost;
  RC_RETURN_IF_ERROR(device_memory(memory));
  RC_RETURN_IF_ERROR(memory->use(gpu, number));
  driver_->inspect([&](Engine&) { memory->pin(copies, number); });
  return memory->copy(copies, to, number, stream);
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
  return cat(
      ", memory of GPUs: ", amount(wire.gpu_bytes_sent), " sent and ",
      amount(wire.gpu_bytes_received), " received direct, ", amount(gpus.bytes_staged), " staged, ",
      gpus.bytes_written == 0 ? "" : cat(amount(gpus.bytes_written), " written by processors, "),
      amount(gpus.bytes_between_gpus), " read from other GPUs",
      for_nics == nullptr ? "" : cat(" (", for_nics->summary(), ")"));
}

}  // namespace rdmacoll
