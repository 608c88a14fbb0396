#include "api/retired_memory.h"

#include <utility>

#include "cuda/driver_api.h"

namespace rdmacoll {

void RetiredMemory::add(DeviceMemory& gpus, std::shared_ptr<std::byte[]> memory, uint64_t stream) {
  Entry entry{std::move(memory), nullptr};
  Gpu gpu = kHost;
  // Any thread may free memory, and each has its own stream 2. The legacy stream waits for all.
  if (stream == cuda::kPerThreadStream) stream = cuda::kLegacyStream;
  Status status = gpus.find(entry.memory.get(), gpu);
  if (status.ok() && gpu == kHost) return;  // no GPU works on it
  if (status.ok()) status = gpus.order(stream, gpu, entry.order);
  if (!status.ok()) entry.order = nullptr;
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
}

void RetiredMemory::sweep() {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const Entry& entry) {
    bool is_reached = false;
    return entry.order != nullptr && entry.order->reached(is_reached).ok() && is_reached;
  });
}

}  // namespace rdmacoll
