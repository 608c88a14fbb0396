#include "collectives/builder.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/status.h"

namespace rdmacoll {
namespace {

Space place(Space space) { return space == Space::output ? Space::input : space; }

}  // namespace

bool overlap(const Slice& a, const Slice& b) {
  if (place(a.space) != place(b.space)) return false;
  if (a.space == Space::scratch || a.space == Space::view) return a.slot == b.slot;
  return a.first_part < b.first_part + b.parts && b.first_part < a.first_part + a.parts;
}

Builder::Builder(int ranks, int rank, int parts) {
  RC_ASSERT(parts > 0 && parts <= std::numeric_limits<uint16_t>::max());
  schedule_.ranks = ranks;
  schedule_.rank = rank;
  schedule_.parts = static_cast<uint16_t>(parts);
}

Builder::Builder(const Shape& shape, int parts, Space scaled)
    : Builder(shape.ranks, shape.rank, parts) {
  schedule_.wide_sums = shape.wide_sums;
  if (!shape.prescaled) return;
  for (int part = 0; part < parts; ++part) {
    const Slice from = input(part);
    scaled_.push_back(scaled == Space::output ? output(part) : scratch(part));
    add({.verb = Verb::copy, .prescale = true, .to = scaled_.back()}, {&from, 1});
  }
}

Slice Builder::contribution(int part, int parts) const {
  if (scaled_.empty()) return input(part, parts);
  Slice slice = scaled_[part];
  RC_ASSERT(parts == 1 || slice.space == Space::output, "a scratch slot holds one part");
  slice.parts = static_cast<uint16_t>(parts);
  return slice;
}

Slice Builder::partial(int part, int parts) const {
  return slice(schedule_.wide_sums ? Space::sums : Space::output, 0, part, parts);
}

Slice Builder::scratch(int part, int parts, bool wide) {
  Slice fresh = slice(Space::scratch, static_cast<int>(schedule_.scratch.size()), part, parts);
  fresh.wide = wide;
  const int room = parts * width(fresh);
  RC_ASSERT(room <= std::numeric_limits<uint16_t>::max(), "too many parts for a slot");
  schedule_.scratch.push_back(static_cast<uint16_t>(room));
  return fresh;
}

Slice Builder::await(int peer, const Slice& like) {
  Slice view =
      slice(Space::view, static_cast<int>(schedule_.steps.size()), like.first_part, like.parts);
  view.wide = like.wide;
  add({.verb = Verb::await, .peer = peer, .to = view});
  return view;
}

void Builder::signal(const Step& step) {
  Slice nothing = step.to;
  nothing.parts = 0;
  const Step word{.verb = step.verb, .peer = step.peer, .to = nothing};
  add(word, {&step.to, sends(step.verb) ? std::size_t{1} : std::size_t{0}});
}

void Builder::reduce(const Slice& to, std::span<const Slice> sources, bool final) {
  add({.verb = Verb::reduce, .final = final, .to = to}, sources);
}

void Builder::add(Step step, std::span<const Slice> sources) {
  RC_ASSERT(schedule_.steps.size() < std::numeric_limits<uint16_t>::max());
  if (step.peer >= 0) {
    Ordinals& ordinals = ordinals_[step.peer];
    step.ordinal = sends(step.verb) ? ordinals.out++ : ordinals.in++;
  }
  if (step.to.space == Space::work) schedule_.uses_work = true;
  if (step.to.space == Space::sums) schedule_.uses_sums = true;
  find_hazards(step, sources);
  step.first_source = static_cast<uint16_t>(schedule_.sources.size());
  step.sources = static_cast<uint16_t>(sources.size());
  schedule_.sources.insert(schedule_.sources.end(), sources.begin(), sources.end());
  schedule_.steps.push_back(step);
}

// A step waits for the writers of the slices that it reads, and for the writers and readers of the
// slice that it writes. The search goes backwards from the latest step, and leaves out steps that a
// found step already implies.
void Builder::find_hazards(Step& step, std::span<const Slice> sources) {
  const std::size_t here = schedule_.steps.size();
  Bits before(here);
  step.first_after = static_cast<uint32_t>(schedule_.afters.size());
  step.afters = 0;
  for (const uint16_t i : take_turn_at(step, sources)) {
    if (before.contains(i)) continue;
    const Step& earlier = schedule_.steps[i];
    bool conflict = false;
    if (writes(earlier)) {
      conflict = overlap(earlier.to, step.to);
      for (const Slice& source : sources) conflict = conflict || overlap(earlier.to, source);
    }
    if (writes(step) && !conflict) {
      conflict = overlap(earlier.to, step.to);
      for (const Slice& source : schedule_.sources_of(earlier)) {
        conflict = conflict || overlap(source, step.to);
      }
    }
    if (!conflict) continue;
    schedule_.afters.push_back(i);
    ++step.afters;
    before.add(i);
    before.add(ancestors_[i]);
  }
  ancestors_.push_back(std::move(before));
}

// Returns the earlier steps that touch this step's places, the latest first. Registers this step
// there.
std::vector<uint16_t> Builder::take_turn_at(const Step& step, std::span<const Slice> sources) {
  std::vector<uint16_t> earlier;
  const auto here = static_cast<uint16_t>(schedule_.steps.size());
  const auto take = [&](const Slice& slice) {
    const bool is_slot = slice.space == Space::scratch || slice.space == Space::view;
    const int first = is_slot ? slice.slot : slice.first_part;
    const int count = is_slot ? 1 : slice.parts;
    std::vector<std::vector<uint16_t>>& turns = turns_[static_cast<int>(place(slice.space))];
    if (turns.size() < static_cast<std::size_t>(first + count)) turns.resize(first + count);
    for (int at = first; at < first + count; ++at) {
      std::vector<uint16_t>& steps = turns[at];
      if (!steps.empty() && steps.back() == here) continue;
      earlier.insert(earlier.end(), steps.begin(), steps.end());
      steps.push_back(here);
    }
  };
  take(step.to);
  for (const Slice& source : sources) take(source);
  std::sort(earlier.begin(), earlier.end(), std::greater<>());
  earlier.erase(std::unique(earlier.begin(), earlier.end()), earlier.end());
  return earlier;
}

}  // namespace rdmacoll
