#include "engine/layout.h"

#include <algorithm>

#include "base/status.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kCacheLine = 64;

constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr uint64_t divide_up(uint64_t value, uint64_t by) { return (value + by - 1) / by; }

}  // namespace

void Layout::assign_even(std::vector<Tensor> tensors, uint64_t segment_bytes, int parts) {
  tensors_ = std::move(tensors);
  ragged_.clear();
  starts_.assign(1, 0);
  for (const Tensor& tensor : tensors_) starts_.push_back(starts_.back() + tensor.bytes);
  parts_ = parts;
  mine_ = -1;
  if (bytes() == 0) {
    segments_ = 0;
    return;
  }
  // Equal segments: a short last one would cost a full round for little.
  const uint64_t unit = kCacheLine * static_cast<uint64_t>(parts);
  segments_ = static_cast<uint32_t>(divide_up(bytes(), std::max<uint64_t>(segment_bytes, unit)));
  segment_bytes_ = round_up(divide_up(bytes(), segments_), unit);
  segments_ = static_cast<uint32_t>(divide_up(bytes(), segment_bytes_));
  part_bytes_max_ = round_up(
      divide_up(std::min(segment_bytes_, bytes()), static_cast<uint64_t>(parts)), kCacheLine);
}

void Layout::assign_ragged(Tensor tensor, const std::vector<uint64_t>& part_bytes, int mine,
                           uint64_t segment_bytes) {
  ragged_.assign(1, 0);
  for (uint64_t part : part_bytes) ragged_.push_back(ragged_.back() + part);
  parts_ = static_cast<int>(part_bytes.size());
  mine_ = mine;
  tensor.bytes = ragged_.back();
  tensors_ = {tensor};
  starts_ = {0, tensor.bytes};
  const uint64_t largest = *std::max_element(part_bytes.begin(), part_bytes.end());
  const auto parts = static_cast<uint64_t>(parts_);
  segment_bytes_ = round_up(std::max(segment_bytes / parts, kCacheLine), kCacheLine);
  segments_ = static_cast<uint32_t>(divide_up(largest, segment_bytes_));
  part_bytes_max_ = std::min(segment_bytes_, round_up(largest, kCacheLine));
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
  const uint64_t end = std::min(begin + segment_bytes_, bytes());
  // The last segment may be shorter: its parts are then shorter too.
  const uint64_t share =
      round_up(divide_up(end - begin, static_cast<uint64_t>(parts_)), kCacheLine);
  return {std::min(begin + share * static_cast<uint64_t>(first), end),
          std::min(begin + share * static_cast<uint64_t>(first + count), end)};
}

uint64_t Layout::slice_bytes(uint32_t segment, int first, int count) const {
  uint64_t bytes = 0;
  each_range(segment, first, count, [&](const Range& range) { bytes += range.bytes(); });
  return bytes;
}

uint64_t Layout::image_offset(uint32_t segment, int part) const {
  if (!is_in_a_row()) return part_bytes_max_ * static_cast<uint64_t>(part);
  return range(segment, part).begin - segment * segment_bytes_;
}

template <typename Base>
void Layout::append(const Range& range, std::vector<Piece>& pieces, Base base) const {
  if (range.bytes() == 0) return;
  auto tensor = static_cast<std::size_t>(
      std::upper_bound(starts_.begin(), starts_.end(), range.begin) - starts_.begin() - 1);
  for (uint64_t at = range.begin; at < range.end; ++tensor) {
    const uint64_t end = std::min(range.end, starts_[tensor + 1]);
    if (end == at) continue;  // an empty tensor
    pieces.push_back({base(tensors_[tensor]) + (at - starts_[tensor]), end - at});
    at = end;
  }
}

void Layout::append_input(const Range& range, std::vector<Piece>& pieces) const {
  if (!ragged_.empty()) {  // my contribution is an array of its own
    if (range.bytes() == 0) return;
    RC_ASSERT(range.begin >= ragged_[mine_] && range.end <= ragged_[mine_ + 1]);
    auto* data = const_cast<std::byte*>(tensors_[0].input);
    pieces.push_back({data + (range.begin - ragged_[mine_]), range.bytes()});
    return;
  }
  // Inputs are only ever read; Piece has one kind of pointer.
  append(range, pieces, [](const Tensor& tensor) { return const_cast<std::byte*>(tensor.input); });
}

void Layout::append_output(const Range& range, std::vector<Piece>& pieces) const {
  append(range, pieces, [](const Tensor& tensor) { return tensor.output; });
}

std::size_t Layout::pieces_max(int parts_at_once) const {
  const int count = std::min(parts_at_once, parts_);
  std::size_t most = 0;
  std::vector<Piece> pieces;
  for (uint32_t segment = 0; segment < segments_; ++segment) {
    for (int first = 0; first + count <= parts_; ++first) {
      pieces.clear();
      each_range(segment, first, count, [&](const Range& one) { append_output(one, pieces); });
      most = std::max(most, pieces.size());
    }
  }
  return most;
}

}  // namespace rdmacoll
