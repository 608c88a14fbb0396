// A second, private view of shared memory, for readers that may write. TensorFlow reuses the memory
// of tensors that it holds alone, and of parts of them. Python's arrays can be written. A write
// through the view first copies the page, and only this process sees it.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "memory/shared_memory.h"

namespace rdmacoll {

// Both mappings of a pool, this rank's or a peer's. The view is read-only until allow_writes(), so
// it reserves no memory.
struct PoolMapping {
  Mapping shared, view;
};
// Maps the pool behind `fd` twice.
Status map_pool(int fd, std::size_t bytes, PoolMapping& mapping);
// Allows writes to whole pages of a view. Fails if there is no memory for them.
Status allow_writes(std::byte* begin, std::size_t bytes);
// Drops all writes to this part of the view. The shared memory is visible there again.
void forget_writes(std::byte* begin, std::size_t bytes);

}  // namespace rdmacoll
