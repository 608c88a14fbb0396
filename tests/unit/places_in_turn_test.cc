// Places in turn: each is used before one comes again, none lies beyond the room, and none that is
// taken is given to another batch.
#include "execution/places_in_turn.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace rdmacoll {
namespace {

constexpr uint64_t kRoom = 2 << 20;

// Takes so many places, one after the other.
std::set<uint64_t> take_in_turn(PlacesInTurn& places, uint64_t bytes, uint64_t count) {
  std::set<uint64_t> found;
  for (uint64_t i = 0; i < count; ++i) {
    const std::optional<uint64_t> place = places.take(bytes);
    EXPECT_TRUE(place.has_value());
    if (!place) break;
    EXPECT_EQ(*place % PlacesInTurn::kAlignment, 0U);
    EXPECT_LE(*place + bytes, kRoom);
    found.insert(*place);
    places.give_back(*place);
  }
  return found;
}

TEST(PlacesInTurn, all_are_used_before_one_comes_again) {
  for (const uint64_t bytes : {8, 4096, 5000, 64 << 10, 512 << 10}) {
    const uint64_t length = (bytes + 4095) / 4096 * 4096;
    const uint64_t count = kRoom / length;
    PlacesInTurn places(kRoom);
    EXPECT_EQ(take_in_turn(places, bytes, count).size(), count) << bytes;
    EXPECT_EQ(take_in_turn(places, bytes, 2 * count).size(), count) << bytes;
  }
}

TEST(PlacesInTurn, long_memory_has_no_place) {
  PlacesInTurn places(kRoom);
  EXPECT_TRUE(places.fits(512 << 10));
  EXPECT_FALSE(places.fits((512 << 10) + 1));
  EXPECT_EQ(places.take((512 << 10) + 1), std::nullopt);
  EXPECT_EQ(PlacesInTurn(0).take(1), std::nullopt);
}

TEST(PlacesInTurn, near_ones_stay_in_a_small_part_of_the_room) {
  PlacesInTurn places(kRoom);
  const auto near = [&places](uint64_t bytes) {
    const std::optional<uint64_t> place = places.take_near(bytes);
    if (place) places.give_back(*place);
    return place;
  };
  constexpr uint64_t kNear = kRoom / PlacesInTurn::kNearShare;
  for (uint64_t turn = 0; turn < 3; ++turn) {
    for (uint64_t at = 0; at < kNear; at += kNear / 4) EXPECT_EQ(near(kNear / 4), at);
  }
  for (const uint64_t bytes : {kNear, 3 * kNear, kRoom}) {
    EXPECT_EQ(near(bytes), 0U);
    EXPECT_EQ(near(bytes), 0U);
  }
  EXPECT_EQ(near(kRoom + 1), std::nullopt);
  // Several at once go beyond that part.
  EXPECT_EQ(places.take_near(kNear), 0U);
  EXPECT_EQ(places.take_near(kNear), kNear);
  EXPECT_EQ(places.take_near(8), 2 * kNear);
  EXPECT_EQ(places.take(8), 2 * kNear + PlacesInTurn::kAlignment);
  places.give_back(0);
  EXPECT_EQ(places.take_near(kNear), 0U);
}

TEST(PlacesInTurn, taken_ones_are_passed_over) {
  PlacesInTurn places(4 * 4096);
  EXPECT_EQ(places.take(4096), 0U);
  EXPECT_EQ(places.take(4096), 4096U);
  EXPECT_EQ(places.take(4096), 8192U);
  places.give_back(4096);
  EXPECT_EQ(places.take(4096), 12288U);
  EXPECT_EQ(places.take(4096), 4096U);  // past the first one, which is taken
  EXPECT_EQ(places.take(4096), std::nullopt);
  places.give_back(12288);
  EXPECT_EQ(places.take(1), 12288U);
}

TEST(PlacesInTurn, batches_in_flight_never_share_bytes) {
  constexpr uint32_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  PlacesInTurn places(kRoom);
  struct Batch {
    uint64_t begin, end;
  };
  std::vector<Batch> batches;
  uint64_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 && !batches.empty()) {
      const std::size_t which = random() % batches.size();
      places.give_back(batches[which].begin);
      batches.erase(batches.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    const uint64_t bytes = 1 + random() % (512 << 10);
    const std::optional<uint64_t> place = places.take(bytes);
    if (!place) {
      ++refused;
      continue;
    }
    ASSERT_LE(*place + bytes, kRoom);
    for (const Batch& other : batches) {
      ASSERT_TRUE(*place + bytes <= other.begin || other.end <= *place) << "step " << step;
    }
    batches.push_back({*place, *place + bytes});
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace rdmacoll
