// Where buffers of our own should begin.
#pragma once

#include <cstddef>

namespace rdmacoll {

// Large arrays of callers begin a few bytes after a page. Where our buffers did too, copies between
// the two ran at a fifth of their speed: processors compare the low 12 bits of a load with those of
// the stores before it, and wait for one that is not the same. Half a page apart, they never meet.
inline constexpr std::size_t kAwayFromArrays = 2048;

// To the next multiple.
constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace rdmacoll
