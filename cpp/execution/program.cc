#include "execution/program.h"

#include <algorithm>
#include <set>

#include "collectives/builder.h"
#include "collectives/roll_call.h"

namespace rdmacoll {
namespace {

bool looks_at(const Schedule& schedule, const Step& step, const Slice& output) {
  const auto is_read = [&](const Slice& slice) {
    return slice.space == Space::output && slice.parts > 0 && overlap(slice, output);
  };
  if (sends(step.verb)) return is_read(step.to);  // the source of a send word is not sent
  return std::ranges::any_of(schedule.sources_of(step), is_read);
}

bool is_published(const Schedule& schedule, const Slice& slice, bool is_lent) {
  return std::ranges::any_of(schedule.steps, [&](const Step& step) {
    return step.verb == Verb::publish && step.lends == is_lent && overlap(step.to, slice);
  });
}

bool is_any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

}  // namespace

Program::Program(Schedule lowered, const SetMembers& members, bool calls_roll)
    : schedule(std::move(lowered)) {
  for (Step& step : schedule.steps) {
    if (step.peer >= 0) step.peer = members[SetRank(step.peer)].value();
  }
  const std::size_t steps = schedule.steps.size();
  turns.resize(steps);
  readers.assign(steps, 0);
  ends_there.assign(steps, false);
  for (std::size_t i = 0; i < steps; ++i) {
    const Step& step = schedule.steps[i];
    bool touches = is_callers(step.to) || (calls_roll && receives(step.verb));
    for (const Slice& source : schedule.sources_of(step)) {
      touches = touches || is_callers(source);
    }
    schedule.each_view(step, [this](uint16_t await) {
      ++readers[await];
      has_views = true;
    });
    turns[i].computes = computes(step.verb);
    turns[i].touches_caller = touches;
    turns[i].is_peer_visible = computes(step.verb) && is_published(schedule, step.to, false);
    turns[i].writes_lent = computes(step.verb) &&
                           (step.to.space == Space::view || is_published(schedule, step.to, true));
    has_peer_visible_writes =
        has_peer_visible_writes || (turns[i].is_peer_visible && !is_callers(step.to));
    ends_there[i] = computes(step.verb) && step.to.space == Space::output &&
                    std::ranges::none_of(schedule.steps, [&](const Step& other) {
                      return looks_at(schedule, other, step.to);
                    });
    lends = lends || step.lends;
    caller_steps += touches ? 1 : 0;
  }
  link_steps();
  count_traffic();
  for (uint16_t parts : schedule.scratch) scratch_parts += parts;
}

void Program::link_steps() {
  std::vector<std::vector<uint16_t>> waiting(turns.size());
  for (const Step& step : schedule.steps) {
    const auto number = static_cast<uint16_t>(index_of(step));
    afters.push_back(step.afters);
    if (step.afters == 0) first.push_back(number);
    for (uint16_t after : schedule.afters_of(step)) waiting[after].push_back(number);
  }
  for (const auto& some : waiting) successors_.insert(successors_.end(), some.begin(), some.end());
  std::span<const uint16_t> rest = successors_;
  for (std::size_t i = 0; i < turns.size(); rest = rest.subspan(waiting[i++].size())) {
    turns[i].successors = rest.first(waiting[i].size());
  }
}

void Program::count_traffic() {
  const auto of = [this](int number) -> Traffic& {
    const JobRank peer(number);
    const auto known = std::ranges::find(traffic, peer, &Traffic::peer);
    return known != traffic.end() ? *known : traffic.emplace_back(Traffic{.peer = peer});
  };
  for (const Step& step : schedule.steps) {
    if (sends(step.verb)) ++of(step.peer).out;
    if (receives(step.verb)) ++of(step.peer).in;
  }
  for (const Step& step : schedule.steps) {
    if (computes(step.verb)) continue;
    StepTraits& turn = turns[index_of(step)];
    turn.sends = sends(step.verb);
    turn.per_segment = turn.sends ? of(step.peer).out : of(step.peer).in;
  }
}

Outline::Outline(const Schedule& schedule, const SetMembers& members) : parts(schedule.parts) {
  std::set<JobRank> found;
  for (const Step& step : schedule.steps) {
    if (step.peer >= 0) found.insert(members[SetRank(step.peer)]);
    parts_at_once = std::max<int>(parts_at_once, step.to.parts);
  }
  peers.assign(found.begin(), found.end());
}

const Program& Programs::prepared(Algorithm algorithm, const Shape& shape,
                                  const Placement& placement, bool calls_roll) {
  // The topology of connected peers does not change: views, NICs and nodes. The key has whether any
  // views or NICs are used.
  const Key key{algorithm,
                shape.root,
                shape.prescaled,
                shape.wide_sums,
                placement.input,
                placement.output,
                is_any(placement.views),
                is_any(placement.nics),
                calls_roll,
                placement.output_shared,
                placement.direct};
  auto& program = programs_[key];
  if (program == nullptr) {
    Schedule lowered = lower(make_schedule(algorithm, shape), placement);
    if (calls_roll) call_roll(lowered, shape);
    program = std::make_unique<Program>(std::move(lowered), members_, calls_roll);
  }
  return *program;
}

}  // namespace rdmacoll
