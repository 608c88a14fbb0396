// Where the bytes of a batch lie: its tensors one after the other, cut in segments, each cut in
// parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/piece.h"

namespace rdmacoll {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

class Layout {
 public:
  struct Tensor {
    const std::byte* input;
    std::byte* output;
    uint64_t bytes;

    bool operator==(const Tensor&) const = default;
  };

  // Allreduce and broadcast: all tensors in a row, `parts` equal shares of each segment. A share
  // begins at a multiple of a cache line, so that two ranks never write one line.
  void assign_even(std::vector<Tensor> tensors, uint64_t segment_bytes, int parts);
  // Allgather: part r is what rank r gives; a segment takes the same stretch of every part.
  // `tensor.input` is my contribution alone, `tensor.output` the whole.
  void assign_ragged(Tensor tensor, const std::vector<uint64_t>& part_bytes, int mine,
                     uint64_t segment_bytes);

  uint32_t segments() const { return segments_; }
  // One part of a segment, in bytes of the row.
  Range range(uint32_t segment, int part) const { return ranges_of(segment, part, 1); }
  // Parts [first, first + count), in order: one range where they lie one after the other.
  template <typename Visit>
  void each_range(uint32_t segment, int first, int count, Visit visit) const {
    if (is_in_a_row()) return visit(ranges_of(segment, first, count));
    for (int part = first; part < first + count; ++part) visit(range(segment, part));
  }
  uint64_t slice_bytes(uint32_t segment, int first, int count) const;
  // Where a part begins in an image of the segment, in which each_range() gives one range, too.
  uint64_t image_offset(uint32_t segment, int part) const;
  uint64_t part_bytes_max() const { return part_bytes_max_; }  // over all segments and parts
  uint64_t segment_bytes_max() const { return part_bytes_max_ * parts_; }

  // Appends the memory of a range.
  void append_input(const Range& range, std::vector<Piece>& pieces) const;
  void append_output(const Range& range, std::vector<Piece>& pieces) const;
  // The most pieces that so many parts of one segment, one after the other, can have.
  std::size_t pieces_max(int parts_at_once) const;
  uint64_t bytes() const { return starts_.empty() ? 0 : starts_.back(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  // The parts of an allgather lie apart when they are cut in several segments.
  bool is_in_a_row() const { return ragged_.empty() || segments_ == 1; }
  Range ranges_of(uint32_t segment, int first, int count) const;
  template <typename Base>
  void append(const Range& range, std::vector<Piece>& pieces, Base base) const;

  std::vector<Tensor> tensors_;
  std::vector<uint64_t> starts_;  // of each tensor, and the end of the row
  std::vector<uint64_t> ragged_;  // start of each part, and the end; empty: even
  uint64_t segment_bytes_ = 0;    // even: of the row; ragged: of each part
  uint64_t part_bytes_max_ = 0;
  uint32_t segments_ = 0;
  int parts_ = 1;
  int mine_ = -1;
};

}  // namespace rdmacoll
