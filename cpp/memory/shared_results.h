// Results that all ranks of a node share: one of them lends the memory, each writes its part of the
// sum there, and nobody copies the parts of the others. A block of its pool, which the others map,
// begins with the number of ranks that still hold it.
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

// Where a result begins in its block, and where each of several that lie there together: each at
// the start of a cache line, as TensorFlow wants its tensors.
inline constexpr std::size_t kResultOffset = kAwayFromArrays;
class ResultOffsets {
 public:
  explicit ResultOffsets(std::span<const uint64_t> bytes);

  std::size_t of(std::size_t result) const { return offsets_[result]; }  // from the block's start
  std::size_t block_bytes() const { return std::max(block_bytes_, kBlockBytesMin); }

 private:
  static constexpr std::size_t kBlockBytesMin = 4096;  // begins with a page

  std::vector<std::size_t> offsets_;
  std::size_t block_bytes_ = kResultOffset;
};

// A block in this process: where it is shared, and a view of it for the caller (private_view.h).
struct ResultBlock {
  std::byte* shared = nullptr;
  std::byte* view = nullptr;
  std::size_t bytes = 0;
};

// This rank's hold on a block, which lets it go when the last copy of the pointer goes, and what
// was written to its view. `mapping` keeps the memory in this process. In a forked child nothing is
// let go: it holds nothing. An error: there is no memory for what may be written.
Status hold_results(const ResultBlock& block, std::shared_ptr<const void> mapping,
                    std::shared_ptr<void>& hold);

// The blocks that this rank has lent. One thread at a time.
class SharedResults {
 public:
  explicit SharedResults(MemoryPool& pool) : pool_(pool) {}

  // A block that so many ranks hold from now on; null: there is no room, also after take_back() of
  // what nobody holds any more.
  std::byte* lend(std::size_t block_bytes, uint32_t ranks);
  void take_back();

 private:
  MemoryPool& pool_;
  std::vector<std::byte*> lent_;
};

}  // namespace rdmacoll
