// Memory of GPUs that callers have given back, while work on their streams may still use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory/device_memory.h"

namespace rdmacoll::cuda {

// Any thread may call it.
class RetiredMemory {
 public:
  // Takes over memory, and lets go of it once all present work of the GPU is done. False: it cannot
  // now.
  using TakeOver = std::function<bool(Gpu gpu, const std::shared_ptr<std::byte[]>& memory)>;

  // `take_over`: for memory whose stream the driver does not know, as of one that was destroyed.
  explicit RetiredMemory(TakeOver take_over) : take_over_(std::move(take_over)) {}

  // Keeps the memory until the work is done that the stream has now. If that cannot be found out
  // yet, sweep() asks again.
  void add(DeviceMemory& gpus, std::shared_ptr<std::byte[]> memory, uint64_t stream);
  // Lets go of memory whose work is done. Another owner may get it then.
  void sweep(DeviceMemory& gpus);

 private:
  struct Entry {
    std::shared_ptr<std::byte[]> memory;
    uint64_t stream = 0;
    Gpu gpu = kHost;                     // unknown
    std::shared_ptr<StreamOrder> order;  // null: unknown, while the stream is captured
  };

  bool has_ended(DeviceMemory& gpus, Entry& entry);

  const TakeOver take_over_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace rdmacoll::cuda
