// Memory of GPUs that callers have given back, while work on their streams may still use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/device_memory.h"

namespace rdmacoll::cuda {

// Any thread may call it.
class RetiredMemory {
 public:
  // Keeps the memory until the work is done that the stream has now. If that cannot be found out,
  // sweep() asks again.
  void add(DeviceMemory& gpus, std::shared_ptr<std::byte[]> memory, uint64_t stream);
  // Lets go of memory whose work is done. Another owner may get it then.
  void sweep(DeviceMemory& gpus);

 private:
  struct Entry {
    std::shared_ptr<std::byte[]> memory;
    uint64_t stream = 0;
    Gpu gpu = kHost;
    std::shared_ptr<StreamOrder> order;  // null: unknown, while the stream is captured
  };

  static bool has_ended(DeviceMemory& gpus, Entry& entry);

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace rdmacoll::cuda
