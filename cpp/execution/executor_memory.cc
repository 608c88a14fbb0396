// Takes work memory, and finds the memory of steps and the sequences of their transfers.
#include <algorithm>

#include "base/small_range.h"
#include "base/text.h"
#include "compute/job.h"
#include "execution/executor.h"
#include "memory/placement.h"
#include "memory/streaming.h"

namespace rdmacoll {
namespace {

// For pieces of this rank, and of peers.
constexpr auto is_on_gpu = [](const auto& piece) { return piece.gpu != kHost; };

}  // namespace

// Locates all operands except the views, which change in each run.
void Executor::locate_job(const Run& run, const Step& step, StepMemory& memory) {
  const Recipe::Head& head = run.recipe->head;
  const Program& program = program_of(run);
  const std::span<const Slice> sources = program.schedule.sources_of(step);
  const bool is_wide = step.to.wide && are_all_of(sources, [](auto& slice) { return slice.wide; });
  const uint64_t bytes = slice_bytes(run, step.to);
  memory.to.clear();
  memory.sources.clear();
  memory.operands.assign(sources.size(), {});
  if (step.to.space != Space::view) locate(run, step.to, bytes, memory.to);
  // The spans are made after all pieces are known, since the vector may move while it grows.
  std::vector<std::size_t>& ends = piece_ends_;
  ends.clear();
  memory.bytes = bytes / (is_wide ? 1 : width(step.to));
  memory.has_views = step.to.space == Space::view;
  const bool gathers = step.verb == Verb::copy && sources.size() > 1;
  for (const Slice& source : sources) {
    if (source.space != Space::view) {
      locate(run, source, gathers || source.wide != step.to.wide ? slice_bytes(run, source) : bytes,
             memory.sources);
    } else {
      memory.has_views = true;
    }
    ends.push_back(memory.sources.size());
  }
  for (std::size_t i = 0, begin = 0; i < sources.size(); begin = ends[i++]) {
    memory.operands[i].pieces = std::span(memory.sources).subspan(begin, ends[i] - begin);
  }
  if (gathers) {  // one operand in many pieces
    RC_ASSERT(!memory.has_views);
    memory.operands.resize(1);
    memory.operands.front().pieces = memory.sources;
  }
  memory.job = {.dtype = is_wide ? Dtype::float32 : head.dtype,
                .op = head.op,
                .to = memory.to,
                .sources = memory.operands};
  if (!is_wide) mark_widths(run, step, sources, memory);
  if (step.prescale) memory.job.factor = head.prescale;
  if (step.final) {
    memory.job.divisor = head.divisor;
    memory.job.factor = head.postscale;
  }
  const bool may_be_on_gpu =
      run.gpu != kHost || head.input == CallerMemory::device || head.output == CallerMemory::device;
  memory.job.on_gpu =
      may_be_on_gpu && (is_any_of(memory.to, is_on_gpu) || is_any_of(memory.sources, is_on_gpu));
  const std::size_t index = program.index_of(step);
  memory.job.shown = program.turns[index].is_peer_visible;
  memory.job.is_lent = program.turns[index].writes_lent;
  const Layout& layout = run.recipe->layout;
  const bool is_result = program.ends_there[index] && !layout.is_in_place();
  memory.job.past_cache =
      (is_result && layout.bytes() >= kStreamedBatchBytesMin) ||
      (memory.job.shown && streams_shown(bytes, layout.bytes(), shared_cache_bytes_));
  const bool in_place =
      is_copy(memory.job) && step.to.space != Space::view &&
      std::equal(memory.to.begin(), memory.to.end(), memory.sources.begin(), memory.sources.end(),
                 [](const Piece& a, const Piece& b) { return a.data == b.data; });
  memory.is_nothing = bytes == 0 || in_place;
}

// Marks the operands of a job that are wide. If sums are wide, the narrow operands are inputs. They
// are scaled while they are added, so that rounding happens once, at the end.
void Executor::mark_widths(const Run& run, const Step& step, std::span<const Slice> sources,
                           StepMemory& memory) {
  memory.job.wide = memory.job.mixes = step.to.wide;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].wide) continue;
    memory.operands[i].wide = true;
    memory.job.mixes = true;
  }
  const Recipe::Head& head = run.recipe->head;
  const bool adds = step.verb == Verb::reduce || step.final;
  if (head.prescale == 1.0 || !adds || !head.shape.wide_sums) return;
  memory.job.prescale = head.prescale;
  memory.job.mixes = true;
}

Status Executor::look_at_views(const Run& run, const Step& step, StepMemory& memory) {
  memory.job.views_gpu = false;
  const std::span<const Slice> sources = program_of(run).schedule.sources_of(step);
  if (step.to.space == Space::view) {
    memory.to.clear();
    bool is_mapped = true;
    for (const RemotePiece& piece : run.views[step.to.slot].pieces) {
      memory.to.push_back({const_cast<std::byte*>(piece.mapped), piece.bytes, piece.gpu});
      is_mapped = is_mapped && piece.mapped != nullptr;
    }
    memory.job.to = memory.to;
    memory.job.views_gpu = is_any_of(memory.to, is_on_gpu);
    const uint64_t expected = slice_bytes(run, step.to);
    if (!is_mapped || total_bytes(memory.to) != expected) {
      return misfit_of(run, step.to,
                       cat("an offer of ", total_bytes(memory.to), " bytes",
                           is_mapped ? "" : " that this rank cannot write", " for an answer of ",
                           expected, " bytes"));
    }
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].space != Space::view) continue;
    const Seen& seen = run.views[sources[i].slot];
    memory.operands[i].remote = seen.pieces;
    memory.job.views_gpu = memory.job.views_gpu || is_any_of(seen.pieces, is_on_gpu);
    memory.operands[i].reader = seen.reader;
  }
  return {};
}

Status Executor::check_sizes(const Run& run, const Step& step, const ComputeJob& job,
                             std::size_t& bytes) const {
  Status status = measure(job, bytes);
  if (status.ok()) return status;
  for (const Slice& source : program_of(run).schedule.sources_of(step)) {
    if (source.space != Space::view) continue;
    uint64_t found = 0;
    for (const RemotePiece& piece : run.views[source.slot].pieces) found += piece.bytes;
    const uint64_t expected = slice_bytes(run, source);
    if (found == expected) continue;
    return misfit_of(run, source, cat(found, " bytes of data where ", expected, " belong"));
  }
  return status;
}

Status Executor::misfit_of(const Run& run, const Slice& view, std::string what) {
  const JobRank peer(program_of(run).schedule.steps[view.slot].peer);
  return {Code::mismatch, std::move(what), {.rank = peer}};
}

uint64_t Executor::sequence(const Run& run, std::size_t index) const {
  const Slot& slot = *run.slot;
  const Program& program = program_of(run);
  const Program::StepTraits& turn = program.turns[index];
  const Step& step = program.schedule.steps[index];
  const uint64_t base = turn.sends ? slot.out[step.peer] : slot.in[step.peer];
  return base + uint64_t{run.segment} * turn.per_segment + step.ordinal;
}

uint64_t Executor::slice_bytes(const Run& run, const Slice& slice) const {
  return layout_of(*run.slot).slice_bytes(run.segment, slice.first_part, slice.parts) *
         static_cast<uint64_t>(width(slice));
}

void Executor::close(const Lanes& lanes) {
  for (std::size_t i = lanes.first; i < lanes.first + lanes.count; ++i) {
    for (Run& run : slots_[i].runs) {
      free_in_ring(run);
      if (run.allocation != nullptr) pool_.free(run.allocation);
      drop_gpu_memory(run);
      run = {};
    }
    slots_[i].batch = {};
  }
}

std::byte* Executor::allocate_in_ring(Run& run, uint64_t bytes, bool in_turn) {
  const uint64_t size = ring_.size() + kAwayFromArrays;
  if (ring_memory_ == nullptr) {
    const bool fits = in_turn ? ring_.fits(bytes) : bytes <= ring_.size();
    if (!fits || pool_.used() + size > pool_.size() / 4) return nullptr;
    ring_memory_ = pool_.allocate(size);
    if (ring_memory_ == nullptr) return nullptr;
    pool_.touch(ring_memory_, size);
    ++allocations_;
  }
  run.ring_offset = in_turn ? ring_.allocate(bytes) : ring_.allocate_near(bytes);
  return run.ring_offset ? ring_memory_ + kAwayFromArrays + *run.ring_offset : nullptr;
}

void Executor::free_in_ring(Run& run) {
  if (run.ring_offset) ring_.free(*std::exchange(run.ring_offset, std::nullopt));
}

// Batches of one segment take work memory from the ring in turn, if the pool has room for it.
// Several segments already use several ranges. A run whose slots are lent keeps its range for all
// its segments.
Status Executor::place_work(Run& run, const Program& program, uint32_t segments, uint64_t bytes) {
  if (run.gpu != kHost) {
    move_work(run, run.gpu_allocation);
    return {};
  }
  if (run.ring_offset) return {};
  const bool in_turn = program.has_peer_visible_writes && segments == 1;
  if (bytes > 0 && (in_turn || program.lends)) {
    if (std::byte* const work = allocate_in_ring(run, bytes, in_turn)) {
      move_work(run, work);
      return {};
    }
  }
  if (bytes > run.work_bytes) {
    if (run.allocation != nullptr) pool_.free(run.allocation);
    run.work_bytes = 0;
    run.allocation = pool_.allocate(bytes + kAwayFromArrays);
    if (run.allocation == nullptr) return pool_exhausted(pool_, bytes);
    run.work_bytes = bytes;
    ++allocations_;
  }
  // Without an allocation the program needs no work memory.
  if (run.allocation != nullptr) move_work(run, run.allocation + kAwayFromArrays);
  return {};
}

void Executor::move_work(Run& run, std::byte* work) {
  if (work == run.work) return;
  run.work = work;
  for (StepMemory& memory : run.memory) memory.is_located = false;
}

uint64_t Executor::work_bytes(const Slot& slot, const Program& program) {
  const Layout& layout = layout_of(slot);
  const Schedule& schedule = program.schedule;
  const uint64_t images = (schedule.uses_work ? 1 : 0) + (schedule.uses_sums ? kWide : 0);
  return images * layout.segment_bytes_max() + program.scratch_parts * layout.part_bytes_max();
}

// Takes work memory on the recipe's GPU for as many segments as there is room. Idle slots give
// theirs up if there is too little. False: there is none.
bool Executor::take_gpu_memory(Slot& slot) {
  const uint64_t bytes = work_bytes(slot, *slot.batch.recipe->on_gpu);
  const std::size_t wanted = std::min<std::size_t>(kRunsMax, layout_of(slot).segments());
  slot.runs_at_once = take_gpu_memory(slot, wanted, bytes);
  if (slot.runs_at_once < wanted) {
    for (Slot& other : slots_) {
      if (other.busy && &other != &slot) continue;
      for (Run& run : other.runs) drop_gpu_memory(run);
    }
    slot.runs_at_once = take_gpu_memory(slot, wanted, bytes);
  }
  return slot.runs_at_once > 0;
}

// Returns for how many runs there is room.
std::size_t Executor::take_gpu_memory(Slot& slot, std::size_t runs, uint64_t bytes) {
  const Gpu gpu = slot.batch.recipe->head.gpu;
  GpuWork& work = *gpu_work_.load(std::memory_order_acquire);
  if (slot.runs.size() < runs) slot.runs.resize(runs);
  for (std::size_t i = 0; i < runs; ++i) {
    Run& run = slot.runs[i];
    if (run.gpu_of_allocation == gpu && bytes <= run.gpu_bytes) continue;
    drop_gpu_memory(run);
    run.gpu_allocation = work.allocate(gpu, bytes);
    if (run.gpu_allocation == nullptr) return i;
    run.gpu_of_allocation = gpu;
    run.gpu_bytes = bytes;
    ++allocations_;
  }
  return runs;
}

void Executor::drop_gpu_memory(Run& run) {
  if (run.gpu_allocation == nullptr) return;
  gpu_work_.load(std::memory_order_acquire)->free(run.gpu_of_allocation, run.gpu_allocation);
  run.gpu_allocation = nullptr;
  run.gpu_of_allocation = kHost;
  run.gpu_bytes = 0;
}

void Executor::locate(const Run& run, const Slice& slice, uint64_t bytes,
                      std::vector<Piece>& pieces) const {
  if (bytes == 0) return;
  const Layout& layout = layout_of(*run.slot);
  const Schedule& schedule = program_of(run).schedule;
  const bool uses_work = schedule.uses_work;
  const auto each_range = [&](auto visit) {
    layout.each_range(run.segment, slice.first_part, slice.parts, visit);
  };
  switch (slice.space) {
    case Space::input:
      each_range([&](const Range& range) { layout.append_input(range, pieces); });
      return;
    case Space::output:
      each_range([&](const Range& range) { layout.append_output(range, pieces); });
      return;
    case Space::work:
      locate_in_image(run, slice, run.work, pieces);
      return;
    case Space::sums:
      locate_in_image(run, slice, run.work + (uses_work ? layout.segment_bytes_max() : 0), pieces);
      return;
    case Space::scratch: {
      uint64_t before = uses_work ? schedule.parts : 0;
      if (schedule.uses_sums) before += uint64_t{kWide} * schedule.parts;
      for (int i = 0; i < slice.slot; ++i) before += schedule.scratch[i];
      pieces.push_back({run.work + before * layout.part_bytes_max(), bytes, run.gpu});
      return;
    }
    case Space::view:
      RC_ASSERT(false, "a view lies in a peer's memory");
  }
}

void Executor::locate_in_image(const Run& run, const Slice& slice, std::byte* image,
                               std::vector<Piece>& pieces) const {
  const Layout& layout = layout_of(*run.slot);
  const auto times = static_cast<uint64_t>(width(slice));
  int part = slice.first_part;
  layout.each_range(run.segment, slice.first_part, slice.parts, [&](const Range& range) {
    std::byte* data = image + layout.image_offset(run.segment, part++) * times;
    if (range.bytes() > 0) pieces.push_back({data, range.bytes() * times, run.gpu});
  });
}

}  // namespace rdmacoll
