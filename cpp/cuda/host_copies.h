// Copies for callers, between memory of a GPU and memory of the host.
#pragma once

#include <memory>
#include <span>

#include "cuda/free_list.h"
#include "cuda/gpus.h"
#include "cuda/stream_order.h"
#include "memory/device_memory.h"

namespace rdmacoll::cuda {

// Any thread may call it.
class HostCopies {
 public:
  HostCopies(std::shared_ptr<Gpus> gpus, StreamOrders& orders)
      : gpus_(std::move(gpus)), orders_(orders) {}
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // As in DeviceMemory.
  Status run(std::span<const HostCopy> copies, CopyTo to, Gpu gpu, uint64_t stream);

 private:
  Status enqueue(std::span<const HostCopy> copies, CopyTo to, Gpu gpu, uint64_t stream,
                 StreamHandle own);
  Status take(Gpu gpu, StreamHandle& own);

  const std::shared_ptr<Gpus> gpus_;
  StreamOrders& orders_;
  // Streams. Each call has one of its own, since it waits for all work of it.
  FreeList<Gpu, StreamHandle> free_;
};

}  // namespace rdmacoll::cuda
