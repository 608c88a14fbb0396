#include "collectives/lower.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/small_range.h"
#include "collectives/builder.h"

namespace rdmacoll {
namespace {

class Lowering {
 public:
  Lowering(const Schedule& from, const Placement& placement)
      : from_(from),
        placement_(placement),
        to_(from.ranks, from.rank, from.parts),
        in_work_(from.parts, false),
        inputs_packed_(from.parts, false),
        outputs_packed_(from.parts, false) {}

  Schedule run() {
    mark_outputs_in_work();
    for (; at_ < from_.steps.size(); ++at_) {
      const Step& step = from_.steps[at_];
      rewrite(step);
      if (sends(step.verb) || step.to.space != Space::output) continue;
      std::fill_n(outputs_packed_.begin() + step.to.first_part, step.to.parts, false);
    }
    unpack_results();
    Schedule lowered = to_.finish();
    lowered.wide_sums = from_.wide_sums;
    return lowered;
  }

 private:
  // Marks the output parts that live in work: hidden parts that a NIC reads or writes, and parts
  // of a GPU's memory that anything else than a NIC with direct access, or a copy there, does.
  void mark_outputs_in_work() {
    if (placement_.output == CallerMemory::visible || placement_.output_shared) return;
    const bool is_of_gpu = placement_.output == CallerMemory::device;
    for (const Step& step : from_.steps) {
      const bool is_by_nic = step.peer >= 0 && by_nic(step);
      if (step.to.space == Space::output && !is_copy_on_gpu(step) &&
          (is_of_gpu ? !is_by_nic || !is_direct(step.verb) : is_by_nic)) {
        mark(step.to);
      }
      for (const Slice& source : from_.sources_of(step)) {
        if (is_of_gpu && source.space == Space::output) mark(source);
      }
    }
    // A slice lies in one place as a whole. All slices that share a part with it lie there too.
    for (bool grows = true; grows;) {
      grows = false;
      for (const Step& step : from_.steps) {
        grows = spread(step.to) || grows;
        for (const Slice& source : from_.sources_of(step)) grows = spread(source) || grows;
      }
    }
  }

  void mark(const Slice& slice) {
    std::fill_n(in_work_.begin() + slice.first_part, slice.parts, true);
  }

  // Marks all of an output slice if a part of it is marked. Returns whether marks were added.
  bool spread(const Slice& slice) {
    if (slice.space != Space::output) return false;
    const auto begin = in_work_.begin() + slice.first_part;
    const auto marked = std::count(begin, begin + slice.parts, true);
    if (marked == 0 || marked == slice.parts) return false;
    mark(slice);
    return true;
  }

  bool is_direct(Verb verb) const {
    return sends(verb) ? placement_.direct.reads_output : placement_.direct.writes_output;
  }

  // Whether the step copies a caller's input to its output, both in memory of GPUs.
  bool is_copy_on_gpu(const Step& step) const {
    return step.verb == Verb::copy && !step.final && !step.prescale &&
           step.to.space == Space::output && placement_.input == CallerMemory::device &&
           placement_.output == CallerMemory::device &&
           are_all_of(from_.sources_of(step),
                      [](const Slice& source) { return source.space == Space::input; });
  }

  bool by_nic(const Step& step) const {
    return !placement_.views[step.peer] && !placement_.nics.empty() && placement_.nics[step.peer];
  }

  void rewrite(const Step& step) {
    if (placement_.output_shared && step.peer >= 0 && step.to.space == Space::output) {
      to_.signal(step);
    } else if (step.verb == Verb::send) {
      if (is_answered_in_place(at_, false)) return;  // a step before has written it to the view
      if (is_answered_in_place(at_, true)) {
        to_.lend(step.peer, moved(step.to));
      } else if (placement_.views[step.peer]) {
        to_.publish(step.peer, visible(step.to));
      } else {
        to_.send(step.peer, by_nic(step) ? for_nic(step.to) : moved(step.to));
      }
    } else if (step.verb == Verb::receive) {
      receive(step);
    } else if (is_copy_on_gpu(step) && !is_in_work(step.to)) {
      to_.add(step, from_.sources_of(step));
    } else {
      std::vector<Slice> sources;
      for (const Slice& source : from_.sources_of(step)) sources.push_back(moved(source));
      Step copy = step;
      copy.to = moved(step.to);
      to_.add(copy, sources);
    }
  }

  // Whether the slot of a step goes to a rank, and the answer comes back from there in the same
  // slot. If that rank may write to memory of this rank, it writes the answer there. The step is
  // the first of these two transfers if `is_first`, else the second.
  bool is_answered_in_place(std::size_t at, bool is_first) const {
    const Step& step = from_.steps[at];
    const Verb other = step.verb == Verb::send ? Verb::receive : Verb::send;
    if (step.to.space != Space::scratch || !placement_.views[step.peer]) return false;
    if (placement_.lends.empty() || !placement_.lends[step.peer]) return false;
    const auto begin = from_.steps.begin() + static_cast<std::ptrdiff_t>(is_first ? at + 1 : 0);
    const auto end =
        is_first ? from_.steps.end() : from_.steps.begin() + static_cast<std::ptrdiff_t>(at);
    return std::any_of(begin, end, [&](const Step& one) {
      return one.verb == other && one.peer == step.peer && one.to == step.to;
    });
  }

  void receive(const Step& step) {
    // The end of the publication says that the answer is there.
    if (is_answered_in_place(at_, false)) return;
    if (is_answered_in_place(at_, true)) {
      moved_scratch_[step.to.slot] = to_.await(step.peer, step.to);
      return;
    }
    if (!placement_.views[step.peer]) {
      to_.receive(step.peer, moved(step.to));
      return;
    }
    const Slice view = to_.await(step.peer, step.to);
    if (step.to.space == Space::scratch && !is_sent(step.to.slot)) {
      moved_scratch_[step.to.slot] = view;  // readers of the scratch slot read the view
    } else {
      to_.copy(moved(step.to), view);
    }
  }

  bool is_sent(int slot) const {
    return std::any_of(from_.steps.begin(), from_.steps.end(), [&](const Step& step) {
      return sends(step.verb) && step.to.space == Space::scratch && step.to.slot == slot;
    });
  }

  // The place of a slice of the original schedule in the lowered one. Inputs of GPUs are packed.
  Slice moved(const Slice& slice) {
    if (slice.space == Space::input && placement_.input == CallerMemory::device) {
      return packed(slice, inputs_packed_, outputs_packed_);
    }
    if (slice.space == Space::output && is_in_work(slice)) {
      return to_.work(slice.first_part, slice.parts);
    }
    if (slice.space == Space::scratch) {
      auto found = moved_scratch_.find(slice.slot);
      if (found == moved_scratch_.end()) {
        const Slice fresh = to_.scratch(slice.first_part, slice.parts, slice.wide);
        found = moved_scratch_.emplace(slice.slot, fresh).first;
      }
      return found->second;
    }
    return slice;
  }

  // Two ranks may publish to each other a slice that both later overwrite with the sum. Both would
  // wait for ever, since a view lasts until the peer has read it. Each publishes a copy instead.
  bool is_exchanged(std::size_t sent_at) const {
    const Slice& slice = from_.steps[sent_at].to;
    if (slice.space == Space::scratch) return false;
    return std::any_of(
        from_.steps.begin() + static_cast<std::ptrdiff_t>(sent_at), from_.steps.end(),
        [&](const Step& step) { return step.verb == Verb::reduce && overlap(step.to, slice); });
  }

  // The same data, in memory that a viewer can see.
  Slice visible(const Slice& slice) {
    if (is_exchanged(at_)) {
      for (const auto& [original, copy] : exchanged_) {
        if (original == slice) return copy;
      }
      const Slice copy = to_.scratch(slice.first_part, slice.parts, slice.wide);
      to_.pack(copy, moved(slice));
      exchanged_.emplace_back(slice, copy);
      return copy;
    }
    return in_pool(slice);
  }

  // The same data, in memory that a NIC can send.
  Slice for_nic(const Slice& slice) {
    const bool is_direct_input = slice.space == Space::input &&
                                 placement_.input == CallerMemory::device &&
                                 placement_.direct.reads_input;
    const bool is_direct_output = slice.space == Space::output &&
                                  placement_.output == CallerMemory::device && !is_in_work(slice);
    return is_direct_input || is_direct_output ? slice : in_pool(slice);
  }

  Slice in_pool(const Slice& slice) {
    if (slice.space == Space::input && placement_.input != CallerMemory::visible) {
      return packed(slice, inputs_packed_, outputs_packed_);
    }
    const bool is_hidden = slice.space == Space::output &&
                           placement_.output != CallerMemory::visible &&
                           !placement_.output_shared && !is_in_work(slice);
    return is_hidden ? packed(slice, outputs_packed_, inputs_packed_) : moved(slice);
  }

  // The slice's place in work. Each of its parts is packed once for its present data. `others` are
  // the packed parts of the other space, which this overwrites.
  Slice packed(const Slice& slice, std::vector<bool>& parts, std::vector<bool>& others) {
    const int last = slice.first_part + slice.parts;
    for (int part = slice.first_part, end = part; part < last; part = end) {
      for (end = part + 1; end < last && parts[end] == parts[part];) ++end;
      if (parts[part]) continue;
      Slice from = slice;
      from.first_part = static_cast<uint16_t>(part);
      from.parts = static_cast<uint16_t>(end - part);
      to_.pack(to_.work(part, end - part), from);
    }
    std::fill(parts.begin() + slice.first_part, parts.begin() + last, true);
    std::fill(others.begin() + slice.first_part, others.begin() + last, false);
    return to_.work(slice.first_part, slice.parts);
  }

  // Whether an output slice lies in work, as a whole. Parts of a slice never lie there alone.
  bool is_in_work(const Slice& slice) const { return in_work_[slice.first_part]; }

  // Parts that are written by the same step are unpacked together.
  void unpack_results() {
    std::vector<std::size_t> written_by(from_.parts, 0);
    for (std::size_t i = 0; i < from_.steps.size(); ++i) {
      const Slice& to = from_.steps[i].to;
      if (sends(from_.steps[i].verb) || to.space != Space::output) continue;
      std::fill_n(written_by.begin() + to.first_part, to.parts, i);
    }
    for (int part = 0, end = 0; part < from_.parts; part = end) {
      end = part + 1;
      if (!in_work_[part]) continue;
      while (end < from_.parts && in_work_[end] && written_by[end] == written_by[part]) ++end;
      to_.unpack(to_.output(part, end - part), to_.work(part, end - part));
    }
  }

  const Schedule& from_;
  const Placement& placement_;
  Builder to_;
  std::vector<bool> in_work_;
  std::vector<bool> inputs_packed_, outputs_packed_;
  std::map<int, Slice> moved_scratch_;
  std::vector<std::pair<Slice, Slice>> exchanged_;
  std::size_t at_ = 0;  // the step that is being rewritten
};

}  // namespace

Schedule lower(const Schedule& schedule, const Placement& placement) {
  return Lowering(schedule, placement).run();
}

}  // namespace rdmacoll
