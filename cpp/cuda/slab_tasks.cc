#include "cuda/slab_tasks.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "base/text.h"

namespace rdmacoll::cuda {

uint64_t number_of_process() {
  static const uint64_t kNumber = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  return kNumber;
}

NewSlab::NewSlab(std::shared_ptr<Gpus> gpus, Gpu gpu, uint64_t bytes)
    : gpus_(std::move(gpus)), gpu_(gpu) {
  slab_.bytes = bytes;
}

void NewSlab::make() {
  status_ = build();
  if (!status_.ok()) release();
  is_ended_.store(true, std::memory_order_release);
}

Status NewSlab::build() {
  RC_RETURN_IF_ERROR(allocate());
  RC_RETURN_IF_ERROR(check_capable());
  return describe();
}

Status NewSlab::allocate() {
  const ScopedContext scope(*gpus_, gpu_);
  RC_RETURN_IF_ERROR(scope.status());
  const Driver& driver = gpus_->driver();
  Address address = 0;
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuMemAlloc_v2(&address, slab_.bytes),
                                  cat("cuMemAlloc of ", bytes_text(slab_.bytes))));
  slab_.begin = address;
  return {};
}

// Without CUDA IPC the driver's error names no reason.
Status NewSlab::check_capable() const {
  const Driver& driver = gpus_->driver();
  unsigned is_capable = 0;
  RC_RETURN_IF_ERROR(driver.check(
      driver.call.cuPointerGetAttribute(
          &is_capable, static_cast<int>(PointerAttribute::is_legacy_cuda_ipc_capable), slab_.begin),
      "cuPointerGetAttribute of IS_LEGACY_CUDA_IPC_CAPABLE"));
  if (is_capable != 0) return {};
  return {Code::failed,
          cat("memory of ", gpus_->facts(gpu_).text(),
              " is not capable of CUDA IPC (IS_LEGACY_CUDA_IPC_CAPABLE is 0), as on integrated and "
              "some virtual GPUs. Set RDMACOLL_CUDA_IPC=off to silence this.")};
}

Status NewSlab::describe() {
  const ScopedContext scope(*gpus_, gpu_);
  RC_RETURN_IF_ERROR(scope.status());
  const Driver& driver = gpus_->driver();
  MemoryHandle handle{};
  RC_RETURN_IF_ERROR(
      driver.check(driver.call.cuIpcGetMemHandle(&handle, slab_.begin), "cuIpcGetMemHandle"));
  std::memcpy(slab_.handle.data(), handle.bytes, sizeof handle.bytes);
  const std::string& uuid = gpus_->facts(gpu_).uuid;
  std::memcpy(slab_.uuid.data(), uuid.data(), std::min(uuid.size(), slab_.uuid.size() - 1));
  slab_.process = number_of_process();
  return {};
}

void NewSlab::release() {
  const Address address = std::exchange(slab_.begin, 0);
  if (address == 0 || gpus_->driver().is_forked_child()) return;
  const ScopedContext scope(*gpus_, gpu_);
  if (scope.status().ok()) gpus_->driver().call.cuMemFree_v2(address);
}

Mapping::~Mapping() {
  const bool is_open = is_ended() && status_.ok() && !is_of_this_process();
  if (!is_open || gpus_->driver().is_forked_child()) return;
  const ScopedContext scope(*gpus_, gpu_);
  if (scope.status().ok()) gpus_->driver().call.cuIpcCloseMemHandle(address_);
}

void Mapping::make() {
  status_ = is_of_this_process() ? reach() : open();
  is_ended_.store(true, std::memory_order_release);
}

Status Mapping::open() {
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu_);
  RC_RETURN_IF_ERROR(scope.status());
  MemoryHandle handle{};
  std::memcpy(handle.bytes, slab_.handle.data(), sizeof handle.bytes);
  return driver.check(driver.call.cuIpcOpenMemHandle_v2(&address_, handle, kIpcLazyPeerAccess),
                      cat("opening memory of the GPU ", slab_.uuid.data(), " by CUDA IPC on ",
                          gpus_->facts(gpu_).text()));
}

// For a rank in this process: its memory has the same address here.
Status Mapping::reach() {
  address_ = slab_.begin;
  if (gpus_->facts(gpu_).uuid == slab_.uuid.data()) return {};
  int ordinal = 0;
  Gpu owner = kHost;
  RC_RETURN_IF_ERROR(gpus_->find(slab_.uuid.data(), ordinal));
  RC_RETURN_IF_ERROR(gpus_->use(ordinal, owner));
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu_);
  RC_RETURN_IF_ERROR(scope.status());
  const Result result = driver.call.cuCtxEnablePeerAccess(gpus_->context(owner), 0);
  return driver.check(result == kPeerAccessAlreadyEnabled ? kSuccess : result,
                      cat("access of ", gpus_->facts(gpu_).text(), " to ",
                          gpus_->facts(owner).text(), " by cuCtxEnablePeerAccess"));
}

}  // namespace rdmacoll::cuda
