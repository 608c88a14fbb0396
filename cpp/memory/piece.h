// Contiguous memory of this process or of a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/status.h"
#include "memory/memory_kind.h"

namespace rdmacoll {

// Memory of this process. Memory of the MemoryPool is recognised by its address. All other memory
// is foreign, and each transport handles it in its own way.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  Gpu gpu = kHost;  // the GPU whose memory it is; only cuda::GpuCompute accesses such memory
};

// Memory of another process. `mapped` is its place in our address space. If null, it is read
// through a RemoteReader in one copy.
struct RemotePiece {
  const std::byte* mapped = nullptr;
  uint64_t address = 0;
  std::size_t bytes = 0;
  Gpu gpu = kHost;  // the GPU of this process that reaches it, if it is memory of a GPU
};

// Reads a peer's memory in one copy. Thread-safe: compute workers call it.
class RemoteReader {
 public:
  virtual ~RemoteReader() = default;
  // Copies `bytes` bytes into `into`, starting `skip` bytes into the concatenation of `from`.
  virtual Status read(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
                      std::size_t bytes) const = 0;
};

inline std::size_t total_bytes(std::span<const Piece> pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

// Copies all pieces, one after the other, into `into`.
inline void gather(std::span<const Piece> from, std::byte* into) {
  for (const Piece& piece : from) {
    if (piece.bytes > 0) std::memcpy(into, piece.data, piece.bytes);
    into += piece.bytes;
  }
}

// Fills all pieces, one after the other, from `from`.
inline void scatter(const std::byte* from, std::span<const Piece> into) {
  for (const Piece& piece : into) {
    if (piece.bytes > 0) std::memcpy(piece.data, from, piece.bytes);
    from += piece.bytes;
  }
}

}  // namespace rdmacoll
