// Writes of memory that another rank of the node reads next.
//
// Through the cache the reader finds the bytes there; but each line that it has read before is
// taken away from it first, one after the other, for 1 ns a line or for 30: one machine, a virtual
// one, showed both within minutes. Past the cache nothing is taken from anybody, and the reader
// fetches the lines from memory. So writes are tried both ways, by size, and what takes less is
// kept up for some thousands of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "memory/piece.h"

namespace rdmacoll {

// Belongs to the thread that writes, as it is the place that matters of both that read and write.
class ShownWrites {
 public:
  struct Costs {
    uint64_t (*now)();                  // in ticks of any length
    double (*memory_ticks_per_byte)();  // what a reader takes for a byte that is in no cache
  };
  ShownWrites();
  explicit ShownWrites(const Costs& costs) : costs_(costs) {}

  // Smaller ones go through the cache: a few lines at a time are taken while others are written.
  static constexpr std::size_t kBytesMin = 2 << 10;

  // A write, and one that lays pieces, of so many bytes together, one behind the other. Whether it
  // went past the cache.
  bool copy(std::byte* to, std::span<const std::byte> from);
  bool gather(std::span<const Piece> from, std::size_t bytes, std::byte* to);
  // Around one that somebody else performs, of so many bytes. Whether it goes past the cache: by
  // stream(), and end_streams() before `end` and before anybody is told.
  bool begin(std::size_t bytes);
  void end();
  // What a write of so many bytes that is not measured does.
  bool go_past_cache(std::size_t bytes) const {
    return bytes >= kBytesMin && sizes_[index_of(bytes)].past_cache;
  }

 private:
  // A trial's first writes find the lines where those before it have left them, at all the places
  // that are written in turn, or many of them where writes are small; its last ones count.
  static constexpr std::size_t kTrialBytes = 4 << 20;
  static constexpr uint32_t kTrialMax = 64;
  static constexpr uint32_t kCounted = 8;
  // Trials' lengths until the next one: more each time that nothing has changed. A trial through
  // the cache may take five times as long as the writes that it interrupts.
  static constexpr uint32_t kPatienceMin = 8;
  static constexpr uint32_t kPatienceMax = 256;
  static constexpr uint32_t kWatched = 8;  // one of so many through the cache is measured

  enum class Phase : uint8_t { settled, through_cache, past_cache };  // in this order
  struct Size {
    Phase phase = Phase::settled;
    bool past_cache = false;
    bool was_past_cache = false;  // before the trial
    uint32_t left = 0;            // writes of this phase
    uint32_t patience = kPatienceMin;
    uint32_t worse = 0;                      // writes in a row
    double through_cache = 0;                // ticks of a byte in the last trial
    std::array<double, kCounted> took = {};  // ... in this one
  };
  static constexpr std::size_t kSizes = 10;

  static std::size_t index_of(std::size_t bytes);
  static uint32_t trial_of(std::size_t index);
  void advance(Size& size);

  Costs costs_;
  std::array<Size, kSizes> sizes_;
  Size* current_ = nullptr;  // whose write is being measured
  std::size_t bytes_ = 0;
  uint64_t began_ = 0;
};

}  // namespace rdmacoll
