// A second view of shared memory, for those who may write where they only should read: TensorFlow
// reuses the memory of what it holds alone, and of parts of it, and Python's arrays can be written.
// What is written through the view is copied first, page by page, and seen by this process alone.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "memory/shared_memory.h"

namespace rdmacoll {

// A pool, one's own or a peer's. The view is for reading only until allow_writes(): so it is no
// claim on memory.
struct PoolMapping {
  Mapping shared, view;
};
Status map_pool(int fd, std::size_t bytes, PoolMapping& mapping);
// Whole pages.
Status allow_writes(std::byte* begin, std::size_t bytes);
// What has been written there through the view is gone, and what is shared is seen again.
void forget_writes(std::byte* begin, std::size_t bytes);

}  // namespace rdmacoll
