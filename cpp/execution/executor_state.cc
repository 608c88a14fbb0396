// The executor's state, for the driver, the stall detection and the state report.

#include <algorithm>
#include <set>

#include "base/text.h"
#include "execution/executor.h"

namespace rdmacoll {

bool Executor::idle() const {
  // An unsent release is work, too: a peer waits for it.
  return releases_.empty() &&
         std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.busy; });
}

bool Executor::runs_before(const Lanes& lanes, uint64_t sequence) const {
  const auto first = slots_.begin() + static_cast<std::ptrdiff_t>(lanes.first);
  return std::any_of(first, first + static_cast<std::ptrdiff_t>(lanes.count),
                     [&](const Slot& slot) { return slot.busy && slot.batch.sequence < sequence; });
}

bool Executor::needs(JobRank peer) const {
  for (const Slot& slot : slots_) {
    if (!slot.busy || !slot.batch.recipe->program->has_traffic_with(peer)) continue;
    if (slot.next_segment < layout_of(slot).segments()) return true;
    for (const Run& run : slot.runs) {
      for (std::size_t step = 0; run.left > 0 && step < run.waiting.size(); ++step) {
        const bool ours = program_of(run).schedule.steps[step].peer == peer.value();
        if (ours && run.waiting[step] != kDone) return true;
      }
    }
  }
  return false;
}

int Executor::peers_waiting() const {
  int most = 0;
  for (const Slot& slot : slots_) {
    const auto oldest = std::find_if(slot.runs.begin(), slot.runs.end(),
                                     [](const Run& run) { return run.left > 0; });
    if (!slot.busy || oldest == slot.runs.end()) continue;
    const Program& program = program_of(*oldest);
    std::set<int> came, late;
    for (std::size_t step = 0; step < oldest->waiting.size(); ++step) {
      const Step& one = program.schedule.steps[step];
      if (one.verb != Verb::receive && one.verb != Verb::await) continue;
      (oldest->waiting[step] == kDone ? came : late).insert(one.peer);
    }
    const auto is_here = [&](int peer) { return !late.contains(peer); };
    if (!late.empty()) most = std::max<int>(most, std::count_if(came.begin(), came.end(), is_here));
  }
  return most;
}

std::string Executor::state() const {
  std::string text;
  for (const Slot& slot : slots_) {
    if (!slot.busy) continue;
    text += cat("  batch ", slot.batch.sequence, " on lane ", int{slot.lane}, ": ",
                slot.segments_left, " of ", layout_of(slot).segments(), " segments left\n");
    for (const Run& run : slot.runs) {
      if (run.left == 0) continue;
      std::vector<std::string> open;
      for (std::size_t i = 0; i < run.waiting.size(); ++i) {
        if (run.waiting[i] != kDone) open.push_back(cat(i));
      }
      text +=
          cat("    segment ", run.segment, ": ", run.left, " steps left: ", join(open, " "), "\n");
    }
  }
  return text;
}

// A peer that has failed gives its memory back after a time, though this rank may have been
// suspended meanwhile. So a step may have read too late if the peer has ended the connection by
// now. Its result must not go on to others, who may not have heard of the failure.
Status Executor::end_of_viewed(const Run& run, const Step& step, bool on_gpu) {
  const Schedule& schedule = program_of(run).schedule;
  for (const Slice& source : schedule.sources_of(step)) {
    if (source.space != Space::view) continue;
    const int peer = schedule.steps[source.slot].peer;
    const std::string cause = transport_.end_of(peer, on_gpu);
    if (!cause.empty()) {
      return {Code::rank_failed, cause, {.rank = JobRank(peer), .cause = cause}};
    }
  }
  return {};
}

}  // namespace rdmacoll
