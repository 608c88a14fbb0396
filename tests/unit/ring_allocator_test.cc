// All of the ring is used before a range comes again, no range lies beyond it, and none that is in
// use is given to another batch.
#include "execution/ring_allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace rdmacoll {
namespace {

constexpr uint64_t kSize = 2 << 20;

// Allocates so many ranges, one after the other, and returns their offsets.
std::set<uint64_t> offsets_in_turn(RingAllocator& ring, uint64_t bytes, uint64_t count) {
  std::set<uint64_t> found;
  for (uint64_t i = 0; i < count; ++i) {
    const std::optional<uint64_t> offset = ring.allocate(bytes);
    EXPECT_TRUE(offset.has_value());
    if (!offset) break;
    EXPECT_EQ(*offset % RingAllocator::kAlignment, 0U);
    EXPECT_LE(*offset + bytes, kSize);
    found.insert(*offset);
    ring.free(*offset);
  }
  return found;
}

TEST(RingAllocator, uses_all_of_it_before_a_range_comes_again) {
  for (const uint64_t bytes : {8, 4096, 5000, 64 << 10, 512 << 10}) {
    const uint64_t length = (bytes + 4095) / 4096 * 4096;
    const uint64_t count = kSize / length;
    RingAllocator ring(kSize);
    EXPECT_EQ(offsets_in_turn(ring, bytes, count).size(), count) << bytes;
    EXPECT_EQ(offsets_in_turn(ring, bytes, 2 * count).size(), count) << bytes;
  }
}

TEST(RingAllocator, refuses_long_memory) {
  RingAllocator ring(kSize);
  EXPECT_TRUE(ring.fits(512 << 10));
  EXPECT_FALSE(ring.fits((512 << 10) + 1));
  EXPECT_EQ(ring.allocate((512 << 10) + 1), std::nullopt);
  EXPECT_EQ(RingAllocator(0).allocate(1), std::nullopt);
}

TEST(RingAllocator, keeps_near_ranges_in_a_small_part) {
  RingAllocator ring(kSize);
  const auto near = [&ring](uint64_t bytes) {
    const std::optional<uint64_t> offset = ring.allocate_near(bytes);
    if (offset) ring.free(*offset);
    return offset;
  };
  constexpr uint64_t kNear = kSize / RingAllocator::kNearShare;
  for (uint64_t turn = 0; turn < 3; ++turn) {
    for (uint64_t at = 0; at < kNear; at += kNear / 4) EXPECT_EQ(near(kNear / 4), at);
  }
  for (const uint64_t bytes : {kNear, 3 * kNear, kSize}) {
    EXPECT_EQ(near(bytes), 0U);
    EXPECT_EQ(near(bytes), 0U);
  }
  EXPECT_EQ(near(kSize + 1), std::nullopt);
  // Several at once go beyond that part.
  EXPECT_EQ(ring.allocate_near(kNear), 0U);
  EXPECT_EQ(ring.allocate_near(kNear), kNear);
  EXPECT_EQ(ring.allocate_near(8), 2 * kNear);
  EXPECT_EQ(ring.allocate(8), 2 * kNear + RingAllocator::kAlignment);
  ring.free(0);
  EXPECT_EQ(ring.allocate_near(kNear), 0U);
}

TEST(RingAllocator, passes_over_ranges_in_use) {
  RingAllocator ring(4 * 4096);
  EXPECT_EQ(ring.allocate(4096), 0U);
  EXPECT_EQ(ring.allocate(4096), 4096U);
  EXPECT_EQ(ring.allocate(4096), 8192U);
  ring.free(4096);
  EXPECT_EQ(ring.allocate(4096), 12288U);
  EXPECT_EQ(ring.allocate(4096), 4096U);  // past the first one, which is taken
  EXPECT_EQ(ring.allocate(4096), std::nullopt);
  ring.free(12288);
  EXPECT_EQ(ring.allocate(1), 12288U);
}

TEST(RingAllocator, batches_in_flight_never_share_bytes) {
  constexpr uint32_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  RingAllocator ring(kSize);
  struct Batch {
    uint64_t begin, end;
  };
  std::vector<Batch> batches;
  uint64_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 && !batches.empty()) {
      const std::size_t which = random() % batches.size();
      ring.free(batches[which].begin);
      batches.erase(batches.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    const uint64_t bytes = 1 + random() % (512 << 10);
    const std::optional<uint64_t> offset = ring.allocate(bytes);
    if (!offset) {
      ++refused;
      continue;
    }
    ASSERT_LE(*offset + bytes, kSize);
    for (const Batch& other : batches) {
      ASSERT_TRUE(*offset + bytes <= other.begin || other.end <= *offset) << "step " << step;
    }
    batches.push_back({*offset, *offset + bytes});
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace rdmacoll
