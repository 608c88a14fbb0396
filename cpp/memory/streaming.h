// Copies past the cache. A write through the cache first fetches each line from memory, so memory
// that is not read before costs its bytes twice. This helps large collectives of several ranks that
// share the memory's rate (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
#pragma once

#include <cstddef>

namespace rdmacoll {

// From this size on a job's destination does not stay in the cache anyway. It is half of a common
// second-level cache.
inline constexpr std::size_t kStreamedBytesMin = 1 << 20;
// From this size on the results of a batch are streamed, even if it goes segment by segment. When
// the last segment is written, the first ones have left the cache.
inline constexpr std::size_t kStreamedBatchBytesMin = 8 << 20;

// Like memcpy(). Other threads and devices see the writes in order only after end_streams().
void stream(std::byte* to, const std::byte* from, std::size_t bytes);
void end_streams();

}  // namespace rdmacoll
