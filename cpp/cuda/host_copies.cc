#include "cuda/host_copies.h"

#include "base/text.h"

namespace rdmacoll::cuda {

HostCopies::~HostCopies() {
  const Driver& driver = gpus_->driver();
  if (driver.is_forked_child()) return;
  for (const auto& [gpu, streams] : free_.take_all()) {
    const ScopedContext scope(*gpus_, gpu);
    if (!scope.status().ok()) continue;
    for (const StreamHandle stream : streams) driver.call.cuStreamDestroy_v2(stream);
  }
}

Status HostCopies::run(std::span<const HostCopy> copies, CopyTo to, Gpu gpu, uint64_t stream) {
  const Driver& driver = gpus_->driver();
  RC_RETURN_IF_ERROR(driver.usable());
  const ScopedContext scope(*gpus_, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  StreamHandle own = nullptr;
  RC_RETURN_IF_ERROR(take(gpu, own));
  const Status enqueued = enqueue(copies, to, gpu, stream, own);
  // Copies that were enqueued before an error still use the memory.
  const Status done =
      driver.check(driver.call.cuStreamSynchronize(own),
                   cat("copying ", to == CopyTo::host ? "from " : "to ", gpus_->facts(gpu).text()));
  free_.give_back(gpu, own);
  return enqueued.ok() ? done : enqueued;
}

Status HostCopies::enqueue(std::span<const HostCopy> copies, CopyTo to, Gpu gpu, uint64_t stream,
                           StreamHandle own) {
  const Driver& driver = gpus_->driver();
  RC_RETURN_IF_ERROR(orders_.follow(gpu, stream, reinterpret_cast<uint64_t>(own)));
  for (const HostCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    const auto address = reinterpret_cast<Address>(copy.on_gpu);
    const Result result =
        to == CopyTo::host
            ? driver.call.cuMemcpyDtoHAsync_v2(copy.on_host, address, copy.bytes, own)
            : driver.call.cuMemcpyHtoDAsync_v2(address, copy.on_host, copy.bytes, own);
    RC_RETURN_IF_ERROR(driver.check(result, cat("a copy of ", bytes_text(copy.bytes))));
  }
  return {};
}

Status HostCopies::take(Gpu gpu, StreamHandle& own) {
  if (const auto free = free_.take(gpu)) {
    own = *free;
    return {};
  }
  const Driver& driver = gpus_->driver();
  return driver.check(driver.call.cuStreamCreate(&own, kStreamNonBlocking), "cuStreamCreate");
}

}  // namespace rdmacoll::cuda
