// The places of the pieces of a job.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "compute/compute.h"
#include "memory/piece.h"

namespace rdmacoll::cuda {

// Walks the pieces of one side of a copy.
class Side {
 public:
  explicit Side(std::span<const Piece> pieces) : pieces_(pieces) { skip(0); }

  void skip(std::size_t bytes) {
    offset_ += bytes;
    while (index_ < pieces_.size() && offset_ >= pieces_[index_].bytes) {
      offset_ -= pieces_[index_].bytes;
      ++index_;
    }
  }
  std::size_t run() const { return pieces_[index_].bytes - offset_; }
  std::byte* data() const { return pieces_[index_].data + offset_; }
  Gpu gpu() const { return pieces_[index_].gpu; }

 private:
  std::span<const Piece> pieces_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
};

// The only GPU among the pieces, or kHost if there are several.
Gpu only_gpu(const ComputeJob& job);
// The GPU that performs a job with memory of several GPUs: if possible the one that has the result.
Gpu main_gpu(const ComputeJob& job);
bool are_on(Gpu gpu, std::span<const Piece> pieces);
// Makes `cut` the pieces of `bytes` bytes from `begin` on.
void cut_out(std::span<const Piece> pieces, std::size_t begin, std::size_t bytes,
             std::vector<Piece>& cut);

}  // namespace rdmacoll::cuda
