// Results that all ranks of a node share. One rank lends the memory from its pool, which the others
// map. Each rank writes its part of the sum there, and no rank copies the parts of the others. A
// block begins with the number of ranks that still hold it.
//
// They help TensorFlow's sums from 1 MiB on, and all gradients of a model most. A backward pass of
// an accelerator may hide the difference. RDMACOLL_SHARE_RESULTS=false shows it
// (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "memory/placement.h"
#include "memory/pool.h"

namespace rdmacoll {

// The offset of the first result in a block, and of each of several results in one block. Each
// result starts at a cache line, as TensorFlow wants its tensors.
inline constexpr std::size_t kResultOffset = kAwayFromArrays;
class ResultOffsets {
 public:
  explicit ResultOffsets(std::span<const uint64_t> bytes);

  std::size_t of(std::size_t result) const { return offsets_[result]; }  // within the block
  std::size_t block_bytes() const { return std::max(block_bytes_, kBlockBytesMin); }

 private:
  static constexpr std::size_t kBlockBytesMin = 4096;  // so the block begins at a page

  std::vector<std::size_t> offsets_;
  std::size_t block_bytes_ = kResultOffset;
};

// A block in this process: its shared memory, and the caller's view of it (private_view.h).
struct ResultBlock {
  std::byte* shared = nullptr;
  std::byte* view = nullptr;
  std::size_t bytes = 0;
};

// Makes this rank's hold on a block. When the last copy of `hold` goes, the block is released and
// writes to its view are dropped. `mapping` keeps the memory in this process. In a forked child a
// hold releases nothing. Fails if there is no memory for writes to the view.
Status hold_results(const ResultBlock& block, std::shared_ptr<const void> mapping,
                    std::shared_ptr<void>& hold);

// The blocks that this rank has lent. One thread at a time may call it.
class SharedResults {
 public:
  explicit SharedResults(MemoryPool& pool) : pool_(pool) {}

  // Lends a block that `ranks` ranks hold from now on. First takes back blocks that no rank holds
  // any more. Returns null if there is still no room.
  std::byte* lend(std::size_t block_bytes, uint32_t ranks);
  // Frees the blocks that no rank holds any more.
  void take_back();

 private:
  MemoryPool& pool_;
  std::vector<std::byte*> lent_;
};

}  // namespace rdmacoll
