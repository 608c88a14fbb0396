// Performs a ComputeJob, or a range of its bytes, on the calling thread. The one place that knows
// how operands in pieces, mapped or not, become runs of contiguous memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compute/compute.h"
#include "memory/shown_writes.h"

namespace rdmacoll {

// Walks the pieces of one operand (or of the destination).
class PieceCursor {
 public:
  PieceCursor() = default;
  explicit PieceCursor(std::span<const Piece> pieces) : local_(pieces) {}
  explicit PieceCursor(const Operand& operand);

  void skip(std::size_t bytes);
  std::size_t run() const;     // contiguous bytes from here; 0 at the end
  std::byte* address() const;  // null where a peer's memory is not mapped

  // For the reader: the pieces from here on, and how far into the first of them we are.
  std::span<const RemotePiece> rest() const { return remote_.subspan(index_); }
  std::size_t offset() const { return offset_; }

 private:
  bool at_end() const { return index_ >= (remote_.empty() ? local_.size() : remote_.size()); }
  std::size_t bytes_here() const;

  std::span<const Piece> local_;
  std::span<const RemotePiece> remote_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;  // into the current piece; always before its end
};

// What a thread needs to perform jobs; grows to the largest job it has seen and is kept.
class Workspace {
 public:
  Workspace();

 private:
  friend class Performance;
  struct Source {
    PieceCursor cursor;
    const RemoteReader* reader = nullptr;  // null: every byte is addressable
    std::byte* bounce = nullptr;
  };

  struct Unmap {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Unmap> bounce_;
  std::vector<Source> sources_;
  std::vector<const void*> addresses_;
  std::vector<uint8_t> wide_;  // by source
  ShownWrites shown_writes_;
};

// The bytes of the job (of its elements in its dtype, however wide operands are), once they are
// found to agree; a peer may have said anything about its own pieces.
Status measure(const ComputeJob& job, std::size_t& bytes);

// Whether the job moves bits unchanged.
bool is_copy(const ComputeJob& job);

// Bytes [first, first + bytes) of the job, both multiples of the element size. Thread-safe for
// disjoint ranges of one job, each thread with its own workspace.
Status perform(const ComputeJob& job, std::size_t first, std::size_t bytes, Workspace& workspace);

}  // namespace rdmacoll
