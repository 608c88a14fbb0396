// The offset at which our own buffers begin.
#pragma once

#include <cstddef>

namespace rdmacoll {

// Large arrays of callers begin a few bytes after the start of a page. If our buffers began there
// too, copies between the two would be several times slower (measured). Processors compare the low
// 12 bits of a load with those of earlier stores, and wait for a false match. Buffers half a page
// apart never match.
inline constexpr std::size_t kAwayFromArrays = 2048;

// Rounds up to the next multiple of `unit`.
constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace rdmacoll
