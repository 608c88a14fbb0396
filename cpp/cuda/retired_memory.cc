#include "cuda/retired_memory.h"

#include <utility>

#include "cuda/driver_api.h"

namespace rdmacoll::cuda {

void RetiredMemory::add(DeviceMemory& gpus, std::shared_ptr<std::byte[]> memory, uint64_t stream) {
  // Any thread may free memory, and each has its own stream 2. The legacy stream waits for all.
  if (stream == kPerThreadStream) stream = kLegacyStream;
  Entry entry{std::move(memory), stream, kHost, nullptr};
  if (has_ended(gpus, entry)) return;
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
}

// Another owner may have the entry's memory then.
bool RetiredMemory::has_ended(DeviceMemory& gpus, Entry& entry) {
  if (entry.gpu == kHost) {
    const Status found = gpus.find(entry.memory.get(), entry.gpu);
    if (entry.gpu == kHost) return found.ok();  // no GPU works on it
  }
  if (entry.order == nullptr) {
    const Status known = gpus.order(entry.stream, entry.gpu, entry.order);
    if (known.code() == Code::invalid) return false;  // a graph captures the stream
    if (!known.ok()) return take_over_(entry.gpu, entry.memory);
  }
  bool is_reached = false;
  return entry.order->reached(is_reached).ok() && is_reached;
}

void RetiredMemory::sweep(DeviceMemory& gpus) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](Entry& entry) { return has_ended(gpus, entry); });
}

}  // namespace rdmacoll::cuda
