// The layout of a batch: a row of bytes, cut into segments, and each segment into parts. The
// callers' inputs and outputs back stretches of the row.
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
    Gpu gpu = kHost;  // the GPU that has input and output

    bool operator==(const Tensor&) const = default;
  };

  // Even layout: inputs and outputs have the same shape. The tensors lie in the row one after the
  // other, and each segment has `parts` equal shares. A share begins at a multiple of a cache line,
  // so that no two ranks write the same line.
  void assign_even(std::vector<Tensor> tensors, uint64_t segment_bytes, int parts);
  // Ragged layout: inputs and outputs consist of the parts that `cut` names. The row has all parts
  // one after the other. A segment takes the same stretch of every part. `inputs` and `outputs`
  // have one address for each tensor. `gpus`: the GPU of each tensor; empty: host
  // memory.
  void assign_ragged(const Cut& cut, const std::vector<std::byte*>& inputs,
                     const std::vector<std::byte*>& outputs, uint64_t segment_bytes,
                     const std::vector<Gpu>& gpus = {});

  // Adds an empty segment to an empty row, for schedules whose messages carry no bytes.
  void have_a_segment() { segments_ = std::max(segments_, 1u); }

  uint32_t segments() const { return segments_; }
  // The bytes of the row that one part of a segment covers.
  Range range(uint32_t segment, int part) const { return ranges_of(segment, part, 1); }
  // Visits the parts [first, first + count) in order. Adjacent parts are visited as one range.
  template <typename Visit>
  void each_range(uint32_t segment, int first, int count, Visit visit) const {
    if (is_in_a_row()) return visit(ranges_of(segment, first, count));
    for (int part = first; part < first + count; ++part) visit(range(segment, part));
  }
  uint64_t slice_bytes(uint32_t segment, int first, int count) const;
  // The offset of a part in an image of the segment. Parts that each_range() visits as one range
  // are adjacent in the image, too.
  uint64_t image_offset(uint32_t segment, int part) const;
  // the maximum over all segments and parts
  uint64_t part_bytes_max() const { return part_bytes_max_; }
  uint64_t part_bytes_min() const;  // ... and the minimum, without empty parts
  uint64_t segment_bytes_max() const { return part_bytes_max_ * parts_; }

  // Appends the memory that backs a range. All of the range must have memory.
  void append_input(const Range& range, std::vector<Piece>& pieces) const;
  void append_output(const Range& range, std::vector<Piece>& pieces) const;
  // pieces_max(): the maximum number of pieces that `parts_at_once` adjacent parts of a segment can
  // have. pieces_bound(): a cheap upper bound of it.
  std::size_t pieces_max(int parts_at_once) const;
  std::size_t pieces_bound() const { return std::max(inputs_.size(), outputs_.size()); }
  uint64_t bytes() const { return bytes_; }
  // Whether some output is also an input. For even layouts.
  bool is_in_place() const {
    return std::ranges::any_of(tensors_, [](const Tensor& tensor) {
      return tensor.output != nullptr && tensor.output == tensor.input;
    });
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // even layouts only
  // The memory of all inputs, or of all outputs.
  std::vector<Piece> input_memory() const { return memory_of(inputs_); }
  std::vector<Piece> output_memory() const { return memory_of(outputs_); }

 private:
  struct Stretch {  // a range of the row, and its memory
    uint64_t begin;
    uint64_t end;
    std::byte* data;
    Gpu gpu;
  };
  using Stretches = std::vector<Stretch>;  // ordered, none is empty

  // Parts of a ragged row are not adjacent if there are several segments.
  bool is_in_a_row() const { return ragged_.empty() || segments_ == 1; }
  Range ranges_of(uint32_t segment, int first, int count) const;
  static void place(const Cut& cut, const Cut::Span& parts, const std::vector<std::byte*>& tensors,
                    const std::vector<Gpu>& gpus, const std::vector<uint64_t>& starts,
                    Stretches& stretches);
  static std::vector<Piece> memory_of(const Stretches& stretches);
  // The first stretch that ends after `at`.
  static Stretches::const_iterator first_after(const Stretches& stretches, uint64_t at);
  static void append(const Range& range, const Stretches& stretches, std::vector<Piece>& pieces);

  std::vector<Tensor> tensors_;
  Stretches inputs_, outputs_;
  std::vector<uint64_t> ragged_;  // the start of each part, and the end; empty for even layouts
  uint64_t bytes_ = 0;            // length of the row
  uint64_t segment_bytes_ = 0;    // even: length in the row; ragged: length in each part
  uint64_t part_bytes_max_ = 0;
  uint32_t segments_ = 0;
  int parts_ = 1;
};

}  // namespace rdmacoll
