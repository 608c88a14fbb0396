#include "execution/places_in_turn.h"

#include <algorithm>

#include "memory/placement.h"

namespace rdmacoll {

std::optional<uint64_t> PlacesInTurn::take(uint64_t bytes) {
  if (!fits(bytes)) return std::nullopt;
  const uint64_t length = round_up(bytes, kAlignment);
  std::optional<uint64_t> place = find(next_, length);
  if (!place) place = find(0, length);
  if (!place) return std::nullopt;
  next_ = *place + length;
  taken_.push_back({*place, next_});
  return place;
}

std::optional<uint64_t> PlacesInTurn::take_near(uint64_t bytes) {
  const uint64_t length = round_up(bytes, kAlignment);
  if (next_near_ + length > room_ / kNearShare) next_near_ = 0;
  const std::optional<uint64_t> place = find(next_near_, length);
  if (!place) return std::nullopt;
  next_near_ = *place + length;
  taken_.push_back({*place, next_near_});
  return place;
}

std::optional<uint64_t> PlacesInTurn::find(uint64_t begin, uint64_t length) const {
  while (begin + length <= room_) {
    const Place* const other = in_the_way(begin, begin + length);
    if (other == nullptr) return begin;
    begin = other->end;
  }
  return std::nullopt;
}

void PlacesInTurn::give_back(uint64_t place) {
  const auto is_it = [place](const Place& taken) { return taken.begin == place; };
  taken_.erase(std::find_if(taken_.begin(), taken_.end(), is_it));
}

const PlacesInTurn::Place* PlacesInTurn::in_the_way(uint64_t begin, uint64_t end) const {
  const auto is_in_the_way = [=](const Place& taken) {
    return taken.begin < end && begin < taken.end;
  };
  const auto found = std::find_if(taken_.begin(), taken_.end(), is_in_the_way);
  return found == taken_.end() ? nullptr : &*found;
}

}  // namespace rdmacoll
