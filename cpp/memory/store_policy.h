// Writes of memory that another rank of the node reads next.
//
// If a write goes through the cache, the reader finds the bytes there. But each line that the
// reader has read before is first taken away from it, one after the other. The cost of that varies
// widely even on one machine (measured). If a write goes past the cache, it takes nothing away, and
// the reader fetches the lines from memory. Both ways are tried for each size, and the faster one
// is used for some thousands of writes.
//
// This helps from 16 KiB on where copies use ordinary stores, as those of an older glibc do, and
// where all writes wait for lines. docs/measurements/2026-11-28-what-mechanisms-are-worth.md has
// the figures, and shows how to see them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "memory/piece.h"

namespace rdmacoll {

// Belongs to the thread that writes. Its processor matters for both the write and the later read.
class StorePolicy {
 public:
  struct Costs {
    uint64_t (*now)();                  // in ticks of any length
    double (*memory_ticks_per_byte)();  // a reader's time for a byte that is in no cache
  };
  StorePolicy();
  explicit StorePolicy(const Costs& costs) : costs_(costs) {}

  // Smaller writes go through the cache: a few lines are taken from the reader while others are
  // written.
  static constexpr std::size_t kBytesMin = 2 << 10;

  // Writes `bytes` bytes: copy() from one place, gather() from pieces, one after the other. Returns
  // whether the write went past the cache.
  bool copy(std::byte* to, std::span<const std::byte> from);
  bool gather(std::span<const Piece> from, std::size_t bytes, std::byte* to);
  // Call these around a write of `bytes` bytes that the caller performs. begin() returns whether to
  // write past the cache, by stream(). The caller then calls end_streams() before end(), and before
  // it tells other ranks.
  bool begin(std::size_t bytes);
  // The same for a write to `to` within a sum that is compared with others. It goes the settled
  // way. If the size has had no trial yet, a brief one of four writes settles it: a sum whose
  // writes go the slow way would lose against one whose size is settled.
  bool begin_compared(const std::byte* to, std::size_t bytes);
  void end();
  // Whether a write of `bytes` bytes that is not measured should go past the cache: as the last
  // trial has settled it.
  bool go_past_cache(std::size_t bytes) const {
    if (bytes < kBytesMin) return false;
    const Size& size = sizes_[index_of(bytes)];
    if (!size.is_known) return size.brief.past_cache;
    return size.phase == Phase::settled ? size.past_cache : size.was_past_cache;
  }

 private:
  // Only the last writes of a trial count. The first ones find the lines as the writes before the
  // trial left them. They cover all memory of the ring (execution/ring_allocator.h),
  // or many of them if writes are small or caches large.
  static constexpr std::size_t kTrialBytes = 4 << 20;
  static constexpr uint32_t kTrialMax = 64;
  static constexpr uint32_t kCounted = 8;
  // The time until the next trial, in lengths of a trial. It doubles each time that the choice
  // stays the same. A trial through the cache may take several times as long as the writes that it
  // interrupts.
  static constexpr uint32_t kIntervalMin = 8;
  static constexpr uint32_t kIntervalMax = 256;
  static constexpr uint32_t kSampled = 8;  // one in this many writes through the cache is measured

  enum class Phase : uint8_t { settled, through_cache, past_cache };  // in this order
  // Two writes each way, in turns. The faster one of each way counts. It begins again if later
  // writes take much longer, as when the processor's cores have changed.
  struct Brief {
    static constexpr uint32_t kWrites = 4;
    bool past_cache = false;
    uint32_t writes = 0;               // those with a measured time
    uint32_t worse = 0;                // slow writes in a row
    std::array<double, 2> least = {};  // ticks for a byte, by way
  };
  struct Size {
    Phase phase = Phase::settled;
    bool past_cache = false;
    bool was_past_cache = false;  // before the trial
    bool is_known = false;        // a trial has ended
    Brief brief = {};             // used until then
    uint32_t left = 0;            // writes left in this phase
    uint32_t interval = kIntervalMin;
    uint32_t worse = 0;                      // slow writes in a row
    double through_cache = 0;                // ticks for a byte in the last trial
    std::array<double, kCounted> took = {};  // ... in the present trial
  };
  static constexpr std::size_t kSizes = 10;

  // Whether compared writes have not been at [to, to + bytes) yet. The kernel first gives the pages
  // there, and no peer has read them, so such a write takes another time than all later ones.
  bool is_first(const std::byte* to, std::size_t bytes);
  static std::size_t index_of(std::size_t bytes);
  static uint32_t trial_of(std::size_t index);
  void advance(Size& size);
  bool is_past_cheaper(double through, double past) const;
  void end_brief(Brief& brief, double took);

  Costs costs_;
  // The places of compared writes: the end of each by its begin. No two of them touch.
  std::map<const std::byte*, const std::byte*> compared_;
  std::array<Size, kSizes> sizes_;
  Size* current_ = nullptr;  // the size whose write is being measured
  Brief* brief_ = nullptr;   // ... in a brief trial
  std::size_t bytes_ = 0;
  uint64_t began_ = 0;
};

}  // namespace rdmacoll
