// Kinds of memory that callers hand over.
#pragma once

#include <cstdint>

namespace rdmacoll {

enum class MemoryKind : uint8_t {
  host,
  pinned,   // host memory that a GPU's driver keeps in place
  device,   // memory of a GPU, which the processor cannot read
  managed,  // moved by the driver between host and GPU, and treated as host memory
};

// A GPU of this process by its number in the engine, in the order of first use.
using Gpu = int16_t;
inline constexpr Gpu kHost = -1;  // not memory of a GPU

}  // namespace rdmacoll
