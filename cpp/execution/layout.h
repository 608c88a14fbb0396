// Where the bytes of a batch lie: in a row, which is cut in segments, each cut in parts. The
// callers' inputs and outputs hold stretches of the row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/piece.h"
#include "operation/cut.h"

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

  // Inputs and outputs have one shape: all tensors in a row, `parts` equal shares of each segment.
  // A share begins at a multiple of a cache line, so that two ranks never write one line.
  void assign_even(std::vector<Tensor> tensors, uint64_t segment_bytes, int parts);
  // Inputs and outputs are made of some parts each, as the cut says; the row has all parts one
  // after the other, and a segment takes the same stretch of every part. By tensor: where it lies.
  void assign_ragged(const Cut& cut, const std::vector<std::byte*>& inputs,
                     const std::vector<std::byte*>& outputs, uint64_t segment_bytes);

  // Even without bytes, for messages that have none either.
  void have_a_segment() { segments_ = std::max(segments_, 1u); }

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

  // Appends the memory of a range, which must be there.
  void append_input(const Range& range, std::vector<Piece>& pieces) const;
  void append_output(const Range& range, std::vector<Piece>& pieces) const;
  // The most pieces that so many parts of one segment, one after the other, can have, and a bound
  // that costs nothing.
  std::size_t pieces_max(int parts_at_once) const;
  std::size_t pieces_bound() const { return std::max(inputs_.size(), outputs_.size()); }
  uint64_t bytes() const { return bytes_; }
  // Some output is an input, too; if even.
  bool is_in_place() const {
    return std::ranges::any_of(tensors_, [](const Tensor& tensor) {
      return tensor.output != nullptr && tensor.output == tensor.input;
    });
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // if even
  // The memory that inputs, or outputs, are made of.
  std::vector<Piece> input_memory() const { return memory_of(inputs_); }
  std::vector<Piece> output_memory() const { return memory_of(outputs_); }

 private:
  struct Stretch {  // of the row
    uint64_t begin;
    uint64_t end;
    std::byte* data;
  };
  using Stretches = std::vector<Stretch>;  // in their order, none of them empty

  // The parts of a ragged row lie apart when they are cut in several segments.
  bool is_in_a_row() const { return ragged_.empty() || segments_ == 1; }
  Range ranges_of(uint32_t segment, int first, int count) const;
  static void place(const Cut& cut, const Cut::Span& parts, const std::vector<std::byte*>& tensors,
                    const std::vector<uint64_t>& starts, Stretches& stretches);
  static std::vector<Piece> memory_of(const Stretches& stretches);
  // The first stretch that ends after this place.
  static Stretches::const_iterator first_after(const Stretches& stretches, uint64_t at);
  static void append(const Range& range, const Stretches& stretches, std::vector<Piece>& pieces);

  std::vector<Tensor> tensors_;
  Stretches inputs_, outputs_;
  std::vector<uint64_t> ragged_;  // start of each part, and the end; empty: even
  uint64_t bytes_ = 0;            // of the row
  uint64_t segment_bytes_ = 0;    // even: of the row; ragged: of each part
  uint64_t part_bytes_max_ = 0;
  uint32_t segments_ = 0;
  int parts_ = 1;
};

}  // namespace rdmacoll
