#include "execution/places_in_turn.h"

#include <algorithm>

#include "memory/placement.h"

namespace rdmacoll {

std::optional<uint64_t> PlacesInTurn::take(uint64_t bytes) {
  if (!fits(bytes)) return std::nullopt;
  const uint64_t length = round_up(bytes, kAlignment);
  uint64_t begin = next_;
  for (bool has_turned = false;;) {
    if (begin + length > room_) {
      if (has_turned) return std::nullopt;
      has_turned = true;
      begin = 0;
    }
    const Place* const other = in_the_way(begin, begin + length);
    if (other == nullptr) break;
    begin = other->end;
  }
  next_ = begin + length;
  taken_.push_back({begin, next_});
  return begin;
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
