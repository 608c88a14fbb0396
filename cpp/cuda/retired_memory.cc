#include "cuda/retired_memory.h"

#include <utility>

#include "cuda/driver_api.h"

namespace rdmacoll::cuda {

void RetiredMemory::add(DeviceMemory& gpus, std::shared_ptr<std::byte[]> memory, uint64_t stream) {
  // Any thread may free memory, and each has its own stream 2. The legacy stream waits for all.
  if (stream == kPerThreadStream) stream = kLegacyStream;
  Entry entry{std::move(memory), stream, kHost, nullptr};
  const Status status = gpus.find(entry.memory.get(), entry.gpu);
  if (status.ok() && entry.gpu == kHost) return;  // no GPU works on it
  if (status.ok()) (void)gpus.order(stream, entry.gpu, entry.order);
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
}

bool RetiredMemory::has_ended(DeviceMemory& gpus, Entry& entry) {
  if (entry.order == nullptr && entry.gpu != kHost) {
    (void)gpus.order(entry.stream, entry.gpu, entry.order);
  }
  bool is_reached = false;
  return entry.order != nullptr && entry.order->reached(is_reached).ok() && is_reached;
}

void RetiredMemory::sweep(DeviceMemory& gpus) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](Entry& entry) { return has_ended(gpus, entry); });
}

}  // namespace rdmacoll::cuda
