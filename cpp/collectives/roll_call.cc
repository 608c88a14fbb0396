#include "collectives/roll_call.h"

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

}  // namespace

void call_roll(Schedule& schedule) {
  constexpr Slice kNothing{Space::input, 0, 0, 0};
  std::vector<uint16_t> heard;  // the receives so far
  const auto add = [&](Verb verb, int peer) {
    Step step{.verb = verb, .peer = peer, .to = kNothing};
    step.ordinal = ordinal_of(schedule, step);
    step.first_source = static_cast<uint16_t>(schedule.sources.size());
    step.first_after = static_cast<uint32_t>(schedule.afters.size());
    // A message follows all earlier receives, so that it passes on their news.
    if (verb == Verb::send) {
      step.afters = static_cast<uint16_t>(heard.size());
      schedule.afters.insert(schedule.afters.end(), heard.begin(), heard.end());
    }
    RC_ASSERT(schedule.steps.size() < std::numeric_limits<uint16_t>::max());
    schedule.steps.push_back(step);
  };
  for (int distance = 1; distance < schedule.ranks; distance *= 2) {
    add(Verb::send, (schedule.rank + distance) % schedule.ranks);
    add(Verb::receive, (schedule.rank - distance + schedule.ranks) % schedule.ranks);
    heard.push_back(static_cast<uint16_t>(schedule.steps.size() - 1));
  }
}

}  // namespace rdmacoll
