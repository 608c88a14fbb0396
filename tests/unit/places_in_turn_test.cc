// Places in turn: each is used before one comes again, and none lies beyond its room.
#include "execution/places_in_turn.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace rdmacoll {
namespace {

std::set<uint64_t> next_places(PlacesInTurn& places, uint64_t bytes, uint64_t room, int count) {
  std::set<uint64_t> found;
  for (int i = 0; i < count; ++i) {
    const uint64_t place = places.next(bytes, room);
    EXPECT_EQ(place % PlacesInTurn::kAlignment, 0U);
    EXPECT_LE(place + bytes, room);
    found.insert(place);
  }
  return found;
}

TEST(PlacesInTurn, all_are_used_before_one_comes_again) {
  for (const uint64_t bytes : {8, 4096, 5000, 64 << 10, 256 << 10}) {
    const uint64_t room = PlacesInTurn::all_bytes(bytes);
    const auto count = static_cast<int>(room / PlacesInTurn::place_bytes(bytes));
    PlacesInTurn places;
    EXPECT_EQ(next_places(places, bytes, room, count).size(), static_cast<std::size_t>(count))
        << bytes;
    EXPECT_EQ(next_places(places, bytes, room, 2 * count).size(), static_cast<std::size_t>(count))
        << bytes;
  }
}

TEST(PlacesInTurn, less_room_has_fewer_and_more_room_has_no_more) {
  PlacesInTurn places;
  EXPECT_EQ(next_places(places, 5000, 3 * 8192 + 5000, 100).size(), 3U);
  const uint64_t all = PlacesInTurn::kBytes / 8192;
  EXPECT_EQ(next_places(places, 5000, 4 * PlacesInTurn::kBytes, 1000).size(), all);
}

TEST(PlacesInTurn, memory_as_large_as_its_room_stays_where_it_is) {
  PlacesInTurn places;
  for (const uint64_t bytes : {5000, 1 << 20, (1 << 20) + 8}) {
    EXPECT_EQ(next_places(places, bytes, bytes, 5), std::set<uint64_t>{0}) << bytes;
    EXPECT_EQ(PlacesInTurn::all_bytes(bytes) % PlacesInTurn::kAlignment, 0U);
  }
}

}  // namespace
}  // namespace rdmacoll
