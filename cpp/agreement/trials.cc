#include "agreement/trials.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/status.h"

namespace rdmacoll {
namespace {

// Whether the times lie apart: all but the slowest of the rival are below all but the fastest of
// the usual way. Times that other programs disturb overlap. So do those of a draw.
bool are_apart(std::vector<Nanoseconds> rival, std::vector<Nanoseconds> usual) {
  std::ranges::sort(rival);
  std::ranges::sort(usual);
  const std::size_t dropped = rival.size() > 1 ? 1 : 0;
  return rival[rival.size() - 1 - dropped] < usual[dropped];
}

Nanoseconds median(std::vector<Nanoseconds> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace

Trials::Trials(int row) : row_(row) { RC_ASSERT(row >= 2); }

// Trials of before are of other rounds, so they do not count.
void Trials::begin(Size& size, std::size_t ways) {
  size.best = 0;
  size.left.resize(ways);
  std::iota(size.left.begin(), size.left.end(), std::size_t{0});
  size.rows.assign(ways, {});
  begin_round(size);
}

void Trials::begin_round(Size& size) {
  size.round = ++rounds_;
  size.begun = 0;
  for (const std::size_t way : size.left) size.rows[way].emplace_back();
}

void Trials::decide(Size& size, std::size_t way) {
  size.best = way;
  size.left = {way};
  size.round = 0;
}

void Trials::restart() {
  for (auto& [key, size] : sizes_) begin(size, key.second.size());
}

bool Trials::are_decided(uint64_t bytes, const Ways& ways) const {
  const auto found = sizes_.find({std::bit_width(bytes) - 1, ways});
  return found != sizes_.end() && found->second.is_decided();
}

Trials::Turn Trials::next(uint64_t sequence, uint64_t bytes, const Ways& ways, Nanoseconds now) {
  RC_ASSERT(!ways.empty());
  const auto [found, is_new] = sizes_.try_emplace({std::bit_width(bytes) - 1, ways});
  Size& size = found->second;
  if (is_new) begin(size, ways.size());
  // Trials whose sums end with an error have no time. Twice as many beginnings are enough.
  if (!size.is_decided() && size.begun >= 2 * trials(size)) decide(size, 0);
  if (size.is_decided()) return {.way = size.best};
  const int trial = size.begun++;
  running_[sequence] = {&size, size.round, trial, now};
  // Sums that begin while the last ones of a round are under way go the usual way.
  const bool is_extra = trial >= trials(size);
  return {.way = is_extra ? 0 : size.left[static_cast<std::size_t>(trial / row_)],
          .is_trial = true};
}

void Trials::ended(uint64_t sequence, Nanoseconds now) {
  const auto found = running_.find(sequence);
  if (found == running_.end()) return;
  const Trial trial = found->second;
  running_.erase(found);
  Size& size = *trial.size;
  if (size.round != trial.round || trial.number >= trials(size)) return;
  if (trial.number % row_ < row_ / 2) return;
  const std::size_t way = size.left[static_cast<std::size_t>(trial.number / row_)];
  size.rows[way].back().push_back(now - trial.began_at);
  judge(size);
}

void Trials::judge(Size& size) {
  const auto counted = static_cast<std::size_t>(row_ - row_ / 2);
  const auto is_complete = [&](std::size_t way) { return size.rows[way].back().size() == counted; };
  if (!std::ranges::all_of(size.left, is_complete)) return;
  const Times usual = size.rows[0].back();
  std::erase_if(size.left, [&](std::size_t way) {
    return way != 0 && !are_apart(size.rows[way].back(), usual);
  });
  if (size.left.size() == 1) return decide(size, 0);
  if (size.rows[0].size() < kRounds) return begin_round(size);
  const auto time = [&](std::size_t way) {
    Nanoseconds sum = 0;
    for (const Times& row : size.rows[way]) sum += median(row);
    return sum;
  };
  decide(size, *std::ranges::min_element(size.left.begin() + 1, size.left.end(), {}, time));
}

}  // namespace rdmacoll
