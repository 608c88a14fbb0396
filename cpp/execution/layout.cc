#include "execution/layout.h"

#include <algorithm>

#include "base/status.h"
#include "memory/placement.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kCacheLine = 64;

constexpr uint64_t divide_up(uint64_t value, uint64_t by) { return (value + by - 1) / by; }

}  // namespace

void Layout::assign_even(std::vector<Tensor> tensors, uint64_t segment_bytes, int parts) {
  tensors_ = std::move(tensors);
  ragged_.clear();
  inputs_.clear();
  outputs_.clear();
  bytes_ = 0;
  for (const Tensor& tensor : tensors_) {
    if (tensor.bytes == 0) continue;
    const uint64_t end = bytes_ + tensor.bytes;
    // Inputs are only read. Piece has a single pointer type.
    inputs_.push_back({bytes_, end, const_cast<std::byte*>(tensor.input), tensor.gpu});
    outputs_.push_back({bytes_, end, tensor.output, tensor.gpu});
    bytes_ = end;
  }
  parts_ = parts;
  if (bytes_ == 0) {
    segments_ = 0;
    return;
  }
  // Equal segments: a short last segment would cost a full round.
  const uint64_t unit = kCacheLine * static_cast<uint64_t>(parts);
  segments_ = static_cast<uint32_t>(divide_up(bytes_, std::max<uint64_t>(segment_bytes, unit)));
  segment_bytes_ = round_up(divide_up(bytes_, segments_), unit);
  segments_ = static_cast<uint32_t>(divide_up(bytes_, segment_bytes_));
  part_bytes_max_ = round_up(
      divide_up(std::min(segment_bytes_, bytes_), static_cast<uint64_t>(parts)), kCacheLine);
}

void Layout::assign_ragged(const Cut& cut, const std::vector<std::byte*>& inputs,
                           const std::vector<std::byte*>& outputs, uint64_t segment_bytes,
                           const std::vector<Gpu>& gpus) {
  tensors_.clear();
  ragged_.assign(1, 0);
  for (const std::vector<int64_t>& part : cut.rows) {
    uint64_t bytes = 0;
    for (std::size_t tensor = 0; tensor < part.size(); ++tensor) {
      bytes += static_cast<uint64_t>(part[tensor]) * cut.row_bytes[tensor];
    }
    ragged_.push_back(ragged_.back() + bytes);
  }
  bytes_ = ragged_.back();
  place(cut, cut.input, inputs, gpus, ragged_, inputs_);
  place(cut, cut.output, outputs, gpus, ragged_, outputs_);
  parts_ = static_cast<int>(cut.rows.size());
  const uint64_t largest = cut.part_bytes_max;
  const uint64_t part_bytes = segment_bytes / static_cast<uint64_t>(parts_);
  segment_bytes_ = round_up(std::max(part_bytes, kCacheLine), kCacheLine);
  segments_ = static_cast<uint32_t>(divide_up(largest, segment_bytes_));
  part_bytes_max_ = std::min(segment_bytes_, round_up(largest, kCacheLine));
}

// Each part takes the next rows of each tensor.
void Layout::place(const Cut& cut, const Cut::Span& parts, const std::vector<std::byte*>& tensors,
                   const std::vector<Gpu>& gpus, const std::vector<uint64_t>& starts,
                   Stretches& stretches) {
  stretches.clear();
  std::vector<std::byte*> at = tensors;
  for (int part = parts.first; part < parts.last; ++part) {
    uint64_t begin = starts[part];
    for (std::size_t tensor = 0; tensor < at.size(); ++tensor) {
      const uint64_t bytes = static_cast<uint64_t>(cut.rows[part][tensor]) * cut.row_bytes[tensor];
      if (bytes == 0) continue;
      stretches.push_back({begin, begin + bytes, at[tensor], gpus.empty() ? kHost : gpus[tensor]});
      begin += bytes;
      at[tensor] += bytes;
    }
  }
}

Range Layout::ranges_of(uint32_t segment, int first, int count) const {
  RC_ASSERT(segment < segments_ && first >= 0 && first + count <= parts_);
  if (!ragged_.empty()) {
    if (segments_ == 1) return {ragged_[first], ragged_[first + count]};
    RC_ASSERT(count == 1, "ragged parts do not lie one after the other");
    const uint64_t begin = ragged_[first], end = ragged_[first + 1];
    const uint64_t skip = segment * segment_bytes_;
    return {std::min(begin + skip, end), std::min(begin + skip + segment_bytes_, end)};
  }
  const uint64_t begin = segment * segment_bytes_;
  const uint64_t end = std::min(begin + segment_bytes_, bytes_);
  // The last segment may be shorter, and so are its parts.
  const uint64_t share =
      round_up(divide_up(end - begin, static_cast<uint64_t>(parts_)), kCacheLine);
  return {std::min(begin + share * static_cast<uint64_t>(first), end),
          std::min(begin + share * static_cast<uint64_t>(first + count), end)};
}

Layout::Stretches::const_iterator Layout::first_after(const Stretches& stretches, uint64_t at) {
  return std::upper_bound(stretches.begin(), stretches.end(), at,
                          [](uint64_t place, const Stretch& next) { return place < next.end; });
}

uint64_t Layout::slice_bytes(uint32_t segment, int first, int count) const {
  uint64_t bytes = 0;
  each_range(segment, first, count, [&](const Range& range) { bytes += range.bytes(); });
  return bytes;
}

uint64_t Layout::part_bytes_min() const {
  uint64_t least = part_bytes_max_;
  for (uint32_t segment = 0; segment < segments_; ++segment) {
    for (int part = 0; part < parts_; ++part) {
      const uint64_t bytes = range(segment, part).bytes();
      if (bytes > 0) least = std::min(least, bytes);
    }
  }
  return least;
}

uint64_t Layout::image_offset(uint32_t segment, int part) const {
  if (!is_in_a_row()) return part_bytes_max_ * static_cast<uint64_t>(part);
  return range(segment, part).begin - segment * segment_bytes_;
}

void Layout::append(const Range& range, const Stretches& stretches, std::vector<Piece>& pieces) {
  if (range.bytes() == 0) return;
  auto stretch = first_after(stretches, range.begin);
  for (uint64_t at = range.begin; at < range.end; ++stretch) {
    RC_ASSERT(stretch != stretches.end() && stretch->begin <= at, "no memory of this rank's");
    const uint64_t end = std::min(range.end, stretch->end);
    pieces.push_back({stretch->data + (at - stretch->begin), end - at, stretch->gpu});
    at = end;
  }
}

void Layout::append_input(const Range& range, std::vector<Piece>& pieces) const {
  append(range, inputs_, pieces);
}

void Layout::append_output(const Range& range, std::vector<Piece>& pieces) const {
  append(range, outputs_, pieces);
}

std::vector<Piece> Layout::memory_of(const Stretches& stretches) {
  std::vector<Piece> memory;
  for (const Stretch& stretch : stretches) {
    memory.push_back({stretch.data, stretch.end - stretch.begin, stretch.gpu});
  }
  return memory;
}

std::size_t Layout::pieces_max(int parts_at_once) const {
  const int count = std::min(parts_at_once, parts_);
  std::size_t most = 0;
  for (uint32_t segment = 0; segment < segments_; ++segment) {
    for (int first = 0; first + count <= parts_; ++first) {
      for (const Stretches* stretches : {&inputs_, &outputs_}) {
        std::size_t found = 0;
        each_range(segment, first, count, [&](const Range& one) {
          auto stretch = first_after(*stretches, one.begin);
          for (; stretch != stretches->end() && stretch->begin < one.end; ++stretch) ++found;
        });
        most = std::max(most, found);
      }
    }
  }
  return most;
}

}  // namespace rdmacoll
