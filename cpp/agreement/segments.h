// The limit for the segments of a batch. The root decides within it, and the gate refuses more.
#pragma once

#include <cstdint>

#include "operation/kind.h"

namespace rdmacoll {

// Each rank steps through all segments of a batch, including empty ones, so the limit bounds its
// time. The largest operation has as many segments of 4 MiB, the usual size.
inline constexpr uint64_t kSegmentsMax = uint64_t{1} << 24;
// A segment, or a rank's share of it, has at least one cache line.
inline constexpr uint64_t kShareBytesMin = 64;

// The number of shares in a segment of this kind. The shares of ragged rows have separate segments.
constexpr uint64_t shares_of(const KindRow& kind, int ranks) {
  return kind.first_may_differ ? 2 * static_cast<uint64_t>(ranks) : 1;
}

// The least size of segments with which `bytes` have at most kSegmentsMax of them.
constexpr uint64_t segment_bytes_min(uint64_t bytes, uint64_t shares) {
  const uint64_t share = bytes / kSegmentsMax + (bytes % kSegmentsMax > 0 ? 1 : 0);
  return share <= kShareBytesMin ? 0 : share * shares;
}

}  // namespace rdmacoll
