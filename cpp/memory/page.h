// The kernel's pages: 4 KiB, or 64 KiB with many kernels of 64-bit ARM.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace rdmacoll {

// A multiple of the page of every kernel.
inline constexpr std::size_t kPageBytesMax = 64 << 10;

// The page of this node's kernel. Its ranks have the same one.
inline std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace rdmacoll
