// The places through which work memory moves that peers read, batch by batch.
//
// They help where a write waits for lines that a peer has read before, as ordinary stores do on
// some processors. When a place is used again, its lines have left the peer's second-level cache.
// They cost a little where copies do not wait.
// docs/measurements/2026-11-28-what-mechanisms-are-worth.md has the figures, and shows how to see
// them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "memory/placement.h"

namespace rdmacoll {

class PlacesInTurn {
 public:
  static constexpr uint64_t kAlignment = 4096;
  // The bytes of all places together, in each lane. The size was measured
  // (docs/measurements/2026-11-25-measured-otherwise.md).
  static constexpr uint64_t kBytes = 512 << 10;

  // Returns the bytes of one place for `bytes` bytes of work memory, and of all its places.
  static uint64_t place_bytes(uint64_t bytes) { return round_up(bytes, kAlignment); }
  static uint64_t all_bytes(uint64_t bytes) { return std::max(place_bytes(bytes), kBytes); }

  // Returns the offset of the next place for `bytes` bytes of work memory, at least one. `room`:
  // the bytes that there are for places. The offset is 0 if there is no room for one.
  uint64_t next(uint64_t bytes, uint64_t room) {
    const uint64_t places = std::min(room, all_bytes(bytes)) / place_bytes(bytes);
    return places == 0 ? 0 : turn_++ % places * place_bytes(bytes);
  }

 private:
  uint64_t turn_ = 0;
};

}  // namespace rdmacoll
