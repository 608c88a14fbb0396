#include "cuda/gpu_memory.h"

#include <algorithm>

#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

Address driver_address(const void* memory) { return reinterpret_cast<Address>(memory); }

}  // namespace

Status GpuMemory::admit(Gpu gpu, const Log& log) {
  const DirectWay* found = way(gpu);
  if (found == nullptr) return {};
  const bool is_new = !found->warning.empty() &&
                      std::find(said_.begin(), said_.end(), found->warning) == said_.end();
  if (is_new && !is_warned_[static_cast<std::size_t>(gpu)].exchange(true)) {
    log.warning(found->warning);
  }
  return found->status;
}

std::string GpuMemory::summary() const {
  std::vector<std::string> texts;
  for (Gpu gpu = 0; gpu < gpus_->size(); ++gpu) {
    const DirectWay* found = way(gpu);
    texts.push_back(cat("cuda:", gpus_->facts(gpu).ordinal, " ",
                        found == nullptr ? DirectWay{}.text() : found->text()));
  }
  return join(texts, "; ");
}

GpuWays GpuMemory::ways(Gpu gpu) const {
  const DirectWay* found = way(gpu);
  return found == nullptr ? GpuWays{} : found->ways;
}

bool GpuMemory::find(const std::byte* address, GpuAllocation& allocation) {
  const Driver& driver = gpus_->driver();
  unsigned type = 0, is_managed = 0, is_capable = 0;
  int device = 0;
  unsigned long long buffer = 0;
  Address base = 0;
  std::size_t bytes = 0;
  const PointerAttribute which[] = {PointerAttribute::memory_type,
                                    PointerAttribute::is_managed,
                                    PointerAttribute::device_ordinal,
                                    PointerAttribute::buffer_id,
                                    PointerAttribute::range_start,
                                    PointerAttribute::range_size,
                                    PointerAttribute::is_gpu_direct_rdma_capable};
  void* values[] = {&type, &is_managed, &device, &buffer, &base, &bytes, &is_capable};
  const Result result = driver.call.cuPointerGetAttributes(
      std::size(values), reinterpret_cast<const int*>(which), values, driver_address(address));
  const bool is_device = static_cast<MemoryType>(type) == MemoryType::device && is_managed == 0;
  if (result != kSuccess || !is_device) return false;
  allocation.begin = reinterpret_cast<std::byte*>(base);
  allocation.bytes = bytes;
  allocation.buffer_id = buffer;
  if (!gpus_->use(device, allocation.gpu).ok()) return false;
  allocation.is_capable = is_capable != 0 && gpus_->facts(allocation.gpu).has_gpudirect;
  return true;
}

Status GpuMemory::dma_buf(Gpu gpu, const Piece& pages, Fd& descriptor) {
  const Driver& driver = gpus_->driver();
  const GpuFacts& facts = gpus_->facts(gpu);
  if (!facts.has_dma_buf || driver.call.cuMemGetHandleForAddressRange == nullptr) {
    return {Code::failed, cat("The driver gives no dma-buf of memory of ", facts.text(), ".")};
  }
  const ScopedContext context(*gpus_, gpu);
  RC_RETURN_IF_ERROR(context.status());
  int fd = -1;
  RC_RETURN_IF_ERROR(
      driver.check(driver.call.cuMemGetHandleForAddressRange(&fd, driver_address(pages.data),
                                                             pages.bytes, kHandleTypeDmaBuf, 0),
                   cat("cuMemGetHandleForAddressRange of ", bytes_text(pages.bytes))));
  descriptor = Fd(fd);
  return {};
}

Status GpuMemory::set_sync_memops(const GpuAllocation& allocation) {
  const Driver& driver = gpus_->driver();
  const ScopedContext context(*gpus_, allocation.gpu);
  RC_RETURN_IF_ERROR(context.status());
  const unsigned on = 1;
  return driver.check(
      driver.call.cuPointerSetAttribute(&on, static_cast<int>(PointerAttribute::sync_memops),
                                        driver_address(allocation.begin)),
      "cuPointerSetAttribute of SYNC_MEMOPS");
}

uint64_t GpuMemory::registrable_bytes(Gpu gpu) {
  const DirectWay* found = way(gpu);
  return found == nullptr ? 0 : found->registrable_bytes;
}

WriteFlush GpuMemory::write_flush(Gpu gpu) {
  const GpuFacts& facts = gpus_->facts(gpu);
  const bool has_call = gpus_->driver().call.cuFlushGPUDirectRDMAWrites != nullptr;
  return write_flush_of(facts.capability, facts.writes_ordering,
                        has_call ? facts.flush_options : std::nullopt);
}

Status GpuMemory::flush(Gpu gpu) {
  const Driver& driver = gpus_->driver();
  const ScopedContext context(*gpus_, gpu);
  RC_RETURN_IF_ERROR(context.status());
  return driver.check(driver.call.cuFlushGPUDirectRDMAWrites(kFlushCurrentDevice, kFlushToOwner),
                      "cuFlushGPUDirectRDMAWrites");
}

}  // namespace rdmacoll::cuda
