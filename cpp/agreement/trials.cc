#include "agreement/trials.h"

#include <algorithm>
#include <bit>

namespace rdmacoll {
namespace {

// Reading in place must save this part of the time, so that a draw does not turn on noise.
constexpr Nanoseconds kLeastGain = 20;  // one in so many

}  // namespace

// Trials whose sums end with an error have no time. Twice as many beginnings are enough.
bool Trials::is_decided(const Size& size) {
  return size.ended >= kTrials || size.begun >= 2 * kTrials;
}

Trials::Way Trials::next(uint64_t sequence, uint64_t bytes, Nanoseconds now) {
  const int number = std::bit_width(bytes) - 1;
  Size& size = sizes_[number];
  if (is_decided(size)) {
    const auto& [staged, in_place] = size.least;
    return {.in_place = in_place < staged - staged / kLeastGain};
  }
  const bool in_place = size.begun++ / kRow % 2 == 1;
  running_[sequence] = {number, in_place, now};
  return {in_place, true};
}

void Trials::ended(uint64_t sequence, Nanoseconds now) {
  const auto found = running_.find(sequence);
  if (found == running_.end()) return;
  const Trial trial = found->second;
  running_.erase(found);
  Size& size = sizes_[trial.size];
  ++size.ended;
  Nanoseconds& least = size.least[trial.in_place ? 1 : 0];
  least = std::min(least, now - trial.began_at);
}

}  // namespace rdmacoll
