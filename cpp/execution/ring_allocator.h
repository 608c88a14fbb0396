// Allocates the work memory that peers read from a ring, batch by batch. One ring serves all
// batches of a rank.
//
// It helps where a write waits for lines that a peer has read before, as ordinary stores do on some
// processors. When a range is used again, its lines have left the peer's second-level cache if the
// ring has twice the size of that cache. In a much larger ring they have left the shared cache,
// too.
//
// Lent slots use a small part of the ring. Their lines come back with the answer, so a range that
// was used lately is best, whose lines are still in this rank's second-level cache. Only the
// first-level caches should have lost them: some processors take longer to hand lines over from
// there (docs/measurements/2026-11-30-intel-xeon.md).
//
// docs/measurements/2026-11-28-what-mechanisms-are-worth.md has the figures under "places in turn",
// and shows how to see them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace rdmacoll {

class RingAllocator {
 public:
  static constexpr uint64_t kAlignment = 4096;
  // The ring has room for at least so many ranges. Longer work memory is allocated elsewhere.
  static constexpr uint64_t kRangesMin = 4;
  // Lent slots lie in this share of the ring: some two first-level caches.
  static constexpr uint64_t kNearShare = 32;

  explicit RingAllocator(uint64_t bytes) : size_(bytes / kAlignment * kAlignment) {}

  uint64_t size() const { return size_; }
  bool fits(uint64_t bytes) const { return bytes <= size_ / kRangesMin; }
  // Allocates the next range of `bytes` bytes, at least one, and returns its offset. Returns
  // nothing if it does not fit, or if the ranges in use leave no room.
  std::optional<uint64_t> allocate(uint64_t bytes);
  // The same for lent slots near the begin of the ring. They may be as long as the ring.
  std::optional<uint64_t> allocate_near(uint64_t bytes);
  void free(uint64_t offset);

 private:
  struct Range {
    uint64_t begin, end;
  };
  // The first free range from `begin` on, or nothing if it would end beyond the ring.
  std::optional<uint64_t> find(uint64_t begin, uint64_t length) const;
  // A range in use that has bytes in common with [begin, end), or null.
  const Range* in_the_way(uint64_t begin, uint64_t end) const;

  uint64_t size_;
  uint64_t next_ = 0, next_near_ = 0;
  std::vector<Range> used_;  // few: one for each batch in flight, or each of its segments
};

}  // namespace rdmacoll
