// Copies past the cache. Memory that is written without being read first costs its bytes twice
// through the cache, which fetches each line before it is overwritten.
#pragma once

#include <cstddef>

namespace rdmacoll {

// From here on a job's destination does not stay in the cache anyway: half of a common second
// level.
inline constexpr std::size_t kStreamedBytesMin = 1 << 20;
// The results of a batch that go segment by segment, from here on: when the last one is written the
// first ones are gone, too.
inline constexpr std::size_t kStreamedBatchBytesMin = 8 << 20;

// As memcpy(). Other threads and devices see it in order only after end_streams().
void stream(std::byte* to, const std::byte* from, std::size_t bytes);
void end_streams();

}  // namespace rdmacoll
