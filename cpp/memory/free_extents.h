// The free parts of a range of memory, as offsets from its begin. No two of them touch.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <optional>

#include "memory/placement.h"

namespace rdmacoll {

class FreeExtents {
 public:
  explicit FreeExtents(std::size_t bytes) : extents_{{0, bytes}} {}

  // Takes bytes from the first extent that has room for them at an offset which is a multiple of
  // `unit`. Returns the offset, or nothing if there is no such extent.
  std::optional<std::size_t> take(std::size_t bytes, std::size_t unit) {
    for (auto extent = extents_.begin(); extent != extents_.end(); ++extent) {
      const auto [offset, length] = *extent;
      const std::size_t first = round_up(offset, unit);
      if (first - offset > length || bytes > length - (first - offset)) continue;
      const std::size_t end = offset + length;
      extents_.erase(extent);
      if (first > offset) extents_[offset] = first - offset;
      if (first + bytes < end) extents_[first + bytes] = end - first - bytes;
      return first;
    }
    return {};
  }

  void give_back(std::size_t offset, std::size_t bytes) {
    const auto after = extents_.find(offset + bytes);
    if (after != extents_.end()) {
      bytes += after->second;
      extents_.erase(after);
    }
    const auto next = extents_.lower_bound(offset);
    if (next != extents_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    extents_[offset] = bytes;
  }

 private:
  std::map<std::size_t, std::size_t> extents_;  // bytes by offset
};

}  // namespace rdmacoll
