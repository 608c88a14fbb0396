#include "execution/ring_allocator.h"

#include <algorithm>

#include "memory/placement.h"

namespace rdmacoll {

std::optional<uint64_t> RingAllocator::allocate(uint64_t bytes) {
  if (!fits(bytes)) return std::nullopt;
  const uint64_t length = round_up(bytes, kAlignment);
  std::optional<uint64_t> offset = find(next_, length);
  if (!offset) offset = find(0, length);
  if (!offset) return std::nullopt;
  next_ = *offset + length;
  used_.push_back({*offset, next_});
  return offset;
}

std::optional<uint64_t> RingAllocator::allocate_near(uint64_t bytes) {
  const uint64_t length = round_up(bytes, kAlignment);
  if (next_near_ + length > size_ / kNearShare) next_near_ = 0;
  const std::optional<uint64_t> offset = find(next_near_, length);
  if (!offset) return std::nullopt;
  next_near_ = *offset + length;
  used_.push_back({*offset, next_near_});
  return offset;
}

std::optional<uint64_t> RingAllocator::find(uint64_t begin, uint64_t length) const {
  while (begin + length <= size_) {
    const Range* const other = in_the_way(begin, begin + length);
    if (other == nullptr) return begin;
    begin = other->end;
  }
  return std::nullopt;
}

void RingAllocator::free(uint64_t offset) {
  const auto is_it = [offset](const Range& used) { return used.begin == offset; };
  used_.erase(std::find_if(used_.begin(), used_.end(), is_it));
}

const RingAllocator::Range* RingAllocator::in_the_way(uint64_t begin, uint64_t end) const {
  const auto is_in_the_way = [=](const Range& used) {
    return used.begin < end && begin < used.end;
  };
  const auto found = std::find_if(used_.begin(), used_.end(), is_in_the_way);
  return found == used_.end() ? nullptr : &*found;
}

}  // namespace rdmacoll
