// The places through which work memory moves that peers read, batch by batch. One room serves all
// batches of a rank.
//
// They help where a write waits for lines that a peer has read before, as ordinary stores do on
// some processors. When a place is used again, its lines have left the peer's second-level cache if
// the room has twice the size of that cache. In a much larger room they have left the shared cache,
// too.
//
// Lent slots use a small part of the room. Their lines come back with the answer, so a place that
// was used lately is best, whose lines are still in this rank's second-level cache. Only the
// first-level caches should have lost them: some processors take longer to hand lines over from
// there (docs/measurements/2026-11-30-intel-xeon.md).
//
// docs/measurements/2026-11-28-what-mechanisms-are-worth.md has the figures, and shows how to see
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace rdmacoll {

class PlacesInTurn {
 public:
  static constexpr uint64_t kAlignment = 4096;
  // Longer work memory has no place here: there would be too few of them.
  static constexpr uint64_t kPlacesMin = 4;
  // Lent slots lie in this share of the room: some two first-level caches.
  static constexpr uint64_t kNearShare = 32;

  // `room`: the bytes of all places together.
  explicit PlacesInTurn(uint64_t room) : room_(room / kAlignment * kAlignment) {}

  uint64_t room() const { return room_; }
  bool fits(uint64_t bytes) const { return bytes <= room_ / kPlacesMin; }
  // Takes the next place for `bytes` bytes of work memory, at least one, and returns its offset.
  // Returns nothing if they do not fit, or if the places that are taken leave no room.
  std::optional<uint64_t> take(uint64_t bytes);
  // The same for lent slots near the begin of the room. They may be as long as the room.
  std::optional<uint64_t> take_near(uint64_t bytes);
  void give_back(uint64_t place);

 private:
  struct Place {
    uint64_t begin, end;
  };
  // The first free place from `begin` on, or nothing if it would end beyond the room.
  std::optional<uint64_t> find(uint64_t begin, uint64_t length) const;
  // A place that is taken and has bytes in common with [begin, end), or null.
  const Place* in_the_way(uint64_t begin, uint64_t end) const;

  uint64_t room_;
  uint64_t next_ = 0, next_near_ = 0;
  std::vector<Place> taken_;  // few: one for each batch in flight, or each of its segments
};

}  // namespace rdmacoll
