#include "agreement/trials.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <utility>

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

// Steps are longer with a way if they take this many times as long. Steps of trials wait for
// messages that those of plans do not send, so smaller differences may be none in a plan.
constexpr double kLonger = 1.03;

// A round gives up after so many more sums. A rank that has joined tells no times.
constexpr int kExtraMax = 1000;

Nanoseconds median(std::vector<Nanoseconds> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace

Trials::Trials(int row, int ranks) : row_(row), ranks_(ranks) { RC_ASSERT(row >= 2); }

// Trials of before are of other rounds, so they do not count.
void Trials::begin(Size& size, std::size_t ways, int row) {
  size.best = 0;
  size.left.resize(ways);
  std::iota(size.left.begin(), size.left.end(), std::size_t{0});
  size.rows.assign(ways, {});
  size.row = row;
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
  size.named.clear();
}

void Trials::restart() {
  for (auto& [key, size] : sizes_) begin(size, key.second.size(), row_);
}

bool Trials::are_decided(uint64_t bytes, const Ways& ways) const {
  const auto found = sizes_.find({std::bit_width(bytes) - 1, ways});
  return found != sizes_.end() && found->second.is_decided();
}

void Trials::forget_times() {
  std::set<uint64_t> rounds;
  for (const auto& [sequence, trial] : std::exchange(running_, {})) rounds.insert(trial.round);
  for (auto& [key, size] : sizes_) {
    if (size.is_decided() || !rounds.contains(size.round)) continue;
    for (const std::size_t way : size.left) size.rows[way].pop_back();
    begin_round(size);
  }
}

// Rows that are shorter than a step tell no time of a step, so trials begin again with longer ones.
void Trials::count_step(Size& size, const Start& start) {
  const int number = size.sums++;
  if (size.named.size() > static_cast<std::size_t>(kRowMax)) size.named.clear();
  const auto [found, is_new] = size.named.try_emplace(start.name);
  const Begun last = std::exchange(found->second, {size.round, number, start.now});
  if (is_new || size.begun >= trials(size)) return;
  const int sums = number - last.sum;  // a step has so many
  const int row = sums + row_ / 2;
  if (sums >= size.row && row <= kRowMax) {
    begin(size, size.rows.size(), row);
  } else if (last.round == size.round && size.begun % size.row >= std::max(sums, size.row / 2)) {
    const std::size_t way = size.left[static_cast<std::size_t>(size.begun / size.row)];
    size.rows[way].back().steps.push_back(start.now - last.at);
  }
}

Trials::Turn Trials::next(const Start& start, uint64_t bytes, const Ways& ways) {
  RC_ASSERT(!ways.empty());
  const auto [found, is_new] = sizes_.try_emplace({std::bit_width(bytes) - 1, ways});
  Size& size = found->second;
  if (is_new) begin(size, ways.size(), row_);
  if (!size.is_decided() && size.begun >= trials(size) + kExtraMax) decide(size, 0);
  if (size.is_decided()) return {.way = size.best};
  count_step(size, start);
  const int trial = size.begun++;
  running_[start.sequence] = {&size, size.round, trial, ranks_, 0};
  // Sums that begin before all times of a round are here go the usual way.
  const bool is_extra = trial >= trials(size);
  return {.way = is_extra ? 0 : size.left[static_cast<std::size_t>(trial / size.row)],
          .is_trial = true};
}

void Trials::ended(const TrialTime& time) {
  const auto found = running_.find(time.sequence);
  if (found == running_.end()) return;
  found->second.awaited -= time.ranks;
  found->second.slowest = std::max(found->second.slowest, time.time);
  if (found->second.awaited > 0) return;
  const Trial trial = found->second;
  running_.erase(found);
  Size& size = *trial.size;
  if (size.round != trial.round || trial.number >= trials(size)) return;
  if (trial.number % size.row < size.row / 2) return;
  const std::size_t way = size.left[static_cast<std::size_t>(trial.number / size.row)];
  size.rows[way].back().sums.push_back(trial.slowest);
  judge(size);
}

Nanoseconds Trials::time_of_sum(const Size& size, std::size_t way) {
  Nanoseconds sum = 0;
  for (const Row& row : size.rows[way]) sum += median(row.sums);
  return sum;
}

// Sums of other sizes are in the steps too, and so is all that the program does.
bool Trials::slows_steps(const Size& size, std::size_t way) {
  const auto step = [&](std::size_t of) {
    Times steps;
    for (const Row& row : size.rows[of])
      steps.insert(steps.end(), row.steps.begin(), row.steps.end());
    return steps.empty() ? 0 : median(steps);
  };
  const auto usual = static_cast<double>(step(0));
  return usual > 0 && static_cast<double>(step(way)) > kLonger * usual;
}

void Trials::judge(Size& size) {
  const auto counted = static_cast<std::size_t>(size.row - size.row / 2);
  const auto is_complete = [&](std::size_t way) {
    return size.rows[way].back().sums.size() == counted;
  };
  if (!std::ranges::all_of(size.left, is_complete)) return;
  const Times& usual = size.rows[0].back().sums;
  std::erase_if(size.left, [&](std::size_t way) {
    return way != 0 && !are_apart(size.rows[way].back().sums, usual);
  });
  if (size.left.size() > 1 && size.rows[0].size() < kRounds) return begin_round(size);
  std::erase_if(size.left, [&](std::size_t way) { return way != 0 && slows_steps(size, way); });
  if (size.left.size() == 1) return decide(size, 0);
  decide(size, *std::ranges::min_element(size.left.begin() + 1, size.left.end(), {},
                                         [&](std::size_t way) { return time_of_sum(size, way); }));
}

}  // namespace rdmacoll
