// Performs a ComputeJob, or a range of its bytes, on the calling thread. Only this file turns
// operands in pieces, mapped or not, into runs of contiguous memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compute/compute.h"
#include "memory/store_policy.h"

namespace rdmacoll {

// Walks the pieces of one operand (or of the destination).
class PieceCursor {
 public:
  PieceCursor() = default;
  explicit PieceCursor(std::span<const Piece> pieces) : local_(pieces) {}
  explicit PieceCursor(const Operand& operand);

  void skip(std::size_t bytes);
  std::size_t run() const;     // contiguous bytes from here; 0 at the end
  std::byte* address() const;  // null if a peer's memory is not mapped

  // For the reader: the remaining pieces, and the offset into the first of them.
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

// A thread's memory for jobs. It grows to the largest job so far and is kept.
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
  StorePolicy store_policy_;
};

// Checks that the operands of a job agree, since a peer may claim anything about its pieces.
// It sets `bytes` to the bytes of the job's elements in its dtype, however wide the operands are.
Status measure(const ComputeJob& job, std::size_t& bytes);

// Whether the job moves bits unchanged.
bool is_copy(const ComputeJob& job);

// Performs bytes [first, first + bytes) of the job. Both are multiples of the element size.
// Thread-safe for disjoint ranges of one job, if each thread has its own workspace.
Status perform(const ComputeJob& job, std::size_t first, std::size_t bytes, Workspace& workspace);

}  // namespace rdmacoll
