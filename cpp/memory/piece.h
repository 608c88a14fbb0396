// Contiguous memory, mine and a peer's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace rdmacoll {

// Memory of this process. Memory of the MemoryPool is recognised by its address; anything else is
// foreign memory and is handled as each transport can.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// Memory of another process. `mapped` is its place in our address space, or null: then it is read
// through a RemoteReader in one copy.
struct RemotePiece {
  const std::byte* mapped = nullptr;
  uint64_t address = 0;
  std::size_t bytes = 0;
};

// Reads a peer's memory in one copy. Thread-safe: compute workers call it.
class RemoteReader {
 public:
  virtual ~RemoteReader() = default;
  // Gathers `bytes` bytes, starting `skip` bytes into the concatenation of `from`.
  virtual Status read(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
                      std::size_t bytes) const = 0;
};

inline std::size_t total_bytes(std::span<const Piece> pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace rdmacoll
