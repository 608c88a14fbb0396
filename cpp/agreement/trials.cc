#include "agreement/trials.h"

#include <algorithm>
#include <bit>

#include "base/status.h"

namespace rdmacoll {
namespace {

// Whether the times lie apart: all but the slowest of the rival are below all but the fastest of
// the best way. Times that other programs disturb overlap. So do those of a draw.
bool are_apart(std::vector<Nanoseconds> rival, std::vector<Nanoseconds> best) {
  std::ranges::sort(rival);
  std::ranges::sort(best);
  const std::size_t dropped = rival.size() > 1 ? 1 : 0;
  return rival[rival.size() - 1 - dropped] < best[dropped];
}

}  // namespace

Trials::Trials(int row) : row_(row) { RC_ASSERT(row >= 2); }

void Trials::begin(Size& size, std::size_t rival) {
  size.rival = rival;
  size.contest = ++contests_;
  size.begun = 0;
  for (Times& row : size.rows) row.clear();
}

// Trials of before are of other contests, so they do not count.
void Trials::restart() {
  for (auto& [key, size] : sizes_) {
    size.best = 0;
    begin(size, 1);
  }
}

Trials::Turn Trials::next(uint64_t sequence, uint64_t bytes, const Ways& ways, Nanoseconds now) {
  RC_ASSERT(!ways.empty());
  const auto [found, is_new] = sizes_.try_emplace({std::bit_width(bytes) - 1, ways});
  Size& size = found->second;
  if (is_new) {
    size.ways = ways.size();
    begin(size, 1);
  }
  // Trials whose sums end with an error have no time. Twice as many beginnings are enough.
  if (size.begun >= 2 * trials()) begin(size, size.rival + 1);
  if (size.is_decided()) return {.way = size.best};
  const int trial = size.begun++;
  running_[sequence] = {&size, size.contest, trial, now};
  const bool is_of_rival = trial < trials() && trial / row_ % 2 == 1;
  return {.way = is_of_rival ? size.rival : size.best, .is_trial = true};
}

void Trials::ended(uint64_t sequence, Nanoseconds now) {
  const auto found = running_.find(sequence);
  if (found == running_.end()) return;
  const Trial trial = found->second;
  running_.erase(found);
  Size& size = *trial.size;
  const bool counts = trial.number < trials() && trial.number % row_ >= row_ / 2;
  if (size.contest != trial.contest || !counts) return;
  size.rows[static_cast<std::size_t>(trial.number / row_)].push_back(now - trial.began_at);
  judge(size);
}

void Trials::judge(Size& size) {
  const auto counted = static_cast<std::size_t>(row_ - row_ / 2);
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    const Times &best = size.rows[2 * pair], &rival = size.rows[2 * pair + 1];
    if (best.size() < counted || rival.size() < counted) return;
    if (!are_apart(rival, best)) return begin(size, size.rival + 1);
  }
  size.best = size.rival;
  begin(size, size.rival + 1);
}

}  // namespace rdmacoll
