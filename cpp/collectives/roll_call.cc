#include "collectives/roll_call.h"

#include <algorithm>
#include <limits>

#include "base/status.h"

namespace rdmacoll {
namespace {

uint16_t ordinal_of(const Schedule& schedule, const Step& next) {
  uint16_t ordinal = 0;
  for (const Step& step : schedule.steps) {
    const bool is_alike = sends(next.verb) ? sends(step.verb) : receives(step.verb);
    if (step.peer == next.peer && is_alike) ++ordinal;
  }
  return ordinal;
}

// Appends a send or a receive without bytes. A send follows the steps of `after`.
void add(Schedule& schedule, Verb verb, int peer, std::span<const uint16_t> after = {}) {
  constexpr Slice kNothing{Space::input, 0, 0, 0};
  Step step{.verb = verb, .peer = peer, .to = kNothing};
  step.ordinal = ordinal_of(schedule, step);
  step.first_source = static_cast<uint16_t>(schedule.sources.size());
  step.first_after = static_cast<uint32_t>(schedule.afters.size());
  step.afters = static_cast<uint16_t>(after.size());
  schedule.afters.insert(schedule.afters.end(), after.begin(), after.end());
  RC_ASSERT(schedule.steps.size() < std::numeric_limits<uint16_t>::max());
  schedule.steps.push_back(step);
}

constexpr int kRanksOfOneRound = 8;

bool is_one_round(const Shape& shape) {
  if (shape.ranks > kRanksOfOneRound) return false;
  for (int rank = 1; rank < shape.ranks; ++rank) {
    if (shape.node_of(rank) != shape.node_of(0)) return false;
  }
  return true;
}

// Two ranks agree about the messages between them, since each send of a schedule has its receive.
void call_in_one_round(Schedule& schedule) {
  const auto has = [&schedule](bool (*is_alike)(Verb), int peer) {
    return std::ranges::any_of(
        schedule.steps, [&](const Step& step) { return step.peer == peer && is_alike(step.verb); });
  };
  for (int distance = 1; distance < schedule.ranks; ++distance) {
    const int to = (schedule.rank + distance) % schedule.ranks;
    const int from = (schedule.rank - distance + schedule.ranks) % schedule.ranks;
    if (!has(sends, to)) add(schedule, Verb::send, to);
    if (!has(receives, from)) add(schedule, Verb::receive, from);
  }
}

}  // namespace

void call_roll(Schedule& schedule, const Shape& shape) {
  if (is_one_round(shape)) return call_in_one_round(schedule);
  std::vector<uint16_t> heard;  // the receives so far
  for (int distance = 1; distance < schedule.ranks; distance *= 2) {
    // A message follows all earlier receives, so that it passes on their news.
    add(schedule, Verb::send, (schedule.rank + distance) % schedule.ranks, heard);
    add(schedule, Verb::receive, (schedule.rank - distance + schedule.ranks) % schedule.ranks);
    heard.push_back(static_cast<uint16_t>(schedule.steps.size() - 1));
  }
}

}  // namespace rdmacoll
