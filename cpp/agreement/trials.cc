#include "agreement/trials.h"

#include <algorithm>
#include <bit>

#include "base/status.h"

namespace rdmacoll {
namespace {

// Whether the times lie apart: all but the slowest in place are below all but the fastest staged.
// Times that other programs disturb overlap. So do those of a draw.
bool are_apart(std::vector<Nanoseconds> in_place, std::vector<Nanoseconds> staged) {
  std::ranges::sort(in_place);
  std::ranges::sort(staged);
  const std::size_t dropped = in_place.size() > 1 ? 1 : 0;
  return in_place[in_place.size() - 1 - dropped] < staged[dropped];
}

}  // namespace

Trials::Trials(int row) : row_(row) { RC_ASSERT(row >= 2); }

Trials::Way Trials::next(uint64_t sequence, uint64_t bytes, Nanoseconds now) {
  const int number = std::bit_width(bytes) - 1;
  Size& size = sizes_[number];
  // Trials whose sums end with an error have no time. Twice as many beginnings are enough.
  if (size.begun >= 2 * trials()) size.is_decided = true;
  if (size.is_decided) return {.in_place = size.in_place};
  const int trial = size.begun++;
  running_[sequence] = {number, trial, now};
  return {.in_place = trial < trials() && trial / row_ % 2 == 1, .is_trial = true};
}

void Trials::ended(uint64_t sequence, Nanoseconds now) {
  const auto found = running_.find(sequence);
  if (found == running_.end()) return;
  const Trial trial = found->second;
  running_.erase(found);
  Size& size = sizes_[trial.size];
  const bool counts = trial.number < trials() && trial.number % row_ >= row_ / 2;
  if (size.is_decided || !counts) return;
  size.rows[static_cast<std::size_t>(trial.number / row_)].push_back(now - trial.began_at);
  judge(size);
}

void Trials::judge(Size& size) const {
  const auto counted = static_cast<std::size_t>(row_ - row_ / 2);
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    const Times &staged = size.rows[2 * pair], &in_place = size.rows[2 * pair + 1];
    if (staged.size() < counted || in_place.size() < counted) return;
    if (!are_apart(in_place, staged)) {
      size.is_decided = true;
      return;
    }
  }
  size.is_decided = size.in_place = true;
}

}  // namespace rdmacoll
