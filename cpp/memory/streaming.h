// Copies past the cache. A write through the cache first fetches each line from memory, so memory
// that is not read before costs its bytes twice. This helps large collectives of several ranks that
// share the memory's rate (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmacoll {

// From this size on a job's destination does not stay in the cache of one core anyway. It is half
// of a common second-level cache.
inline constexpr std::size_t kStreamedBytesMin = 1 << 20;
// From this size on the results of a batch are streamed, even if it goes segment by segment. When
// the last segment is written, the first ones have left the cache.
inline constexpr std::size_t kStreamedBatchBytesMin = 8 << 20;

// Whether data that peers read next is streamed. It is, if the operations' inputs and what is
// packed of them, `batch_bytes` each, fill the cache that the ranks share (0: its size is not
// known). Then peers would not find it there.
inline bool streams_shown(uint64_t bytes, uint64_t batch_bytes, uint64_t shared_cache_bytes) {
  return bytes >= kStreamedBytesMin && 2 * batch_bytes >= shared_cache_bytes;
}

// Like memcpy(). Other threads and devices see the writes in order only after end_streams().
void stream(std::byte* to, const std::byte* from, std::size_t bytes);
void end_streams();

}  // namespace rdmacoll
