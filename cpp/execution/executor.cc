#include "execution/executor.h"

#include <algorithm>
#include <bit>

#include "base/small_range.h"
#include "compute/job.h"

namespace rdmacoll {
namespace {

// Bytes reduced between two polls of the transport. Peers wait for answers, and a job may run on
// this thread.
constexpr uint64_t kComputeBytesPerPoll = 1 << 20;
// A job on a GPU takes the processor as long as so many bytes would.
constexpr uint64_t kGpuJobBytes = 64 << 10;

}  // namespace

Executor::Executor(int ranks, Transport& transport, Compute& compute, MemoryPool& pool,
                   const std::atomic<GpuWork*>& gpu_work, uint64_t ring_bytes,
                   uint64_t shared_cache_bytes)
    : ranks_(static_cast<std::size_t>(ranks)),
      transport_(transport),
      compute_(&compute),
      pool_(pool),
      gpu_work_(gpu_work),
      shared_cache_bytes_(shared_cache_bytes),
      ring_(ring_bytes) {
  slots_.reserve(kLanesMax);
}

Executor::~Executor() {
  close({0, slots_.size()});
  if (ring_memory_ != nullptr) pool_.free(ring_memory_);
}

void Executor::open(const Lanes& lanes) {
  RC_ASSERT(std::has_single_bit(lanes.count) && lanes.first + lanes.count <= kLanesMax);
  // The sequences of a lane continue when another set takes the lane over. Both ends of a pair have
  // counted the same transfers.
  while (slots_.size() < lanes.first + lanes.count) {
    const auto number = static_cast<Lane>(slots_.size());
    Slot& slot = slots_.emplace_back();
    slot.lane = number;
    slot.out.assign(ranks_, 0);
    slot.in.assign(ranks_, 0);
  }
}

Status Executor::start(const Lanes& lanes, Batch batch) {
  Slot& slot = slots_[lanes.of(batch.sequence)];
  slot.batch = std::move(batch);
  return start(slot);
}

Status Executor::start(const Lanes& lanes, uint64_t sequence, const OperationRef& operation) {
  Slot& slot = slots_[lanes.of(sequence)];
  slot.batch.sequence = sequence;
  slot.batch.operations.assign(1, operation);
  slot.batch.recipe = operation->caches.recipe;
  slot.batch.is_trial = false;
  return start(slot);
}

Status Executor::start(Slot& slot) {
  RC_ASSERT(!slot.busy);
  RC_ASSERT(
      std::ranges::none_of(slot.runs, [](const Run& run) { return run.ring_offset.has_value(); }));
  ++batches_;
  slot.busy = true;
  slot.next_segment = 0;
  const Recipe& recipe = *slot.batch.recipe;
  const uint32_t segments = recipe.program == nullptr ? 0 : recipe.layout.segments();
  slot.segments_left = slot.caller_segments_left = slot.caller_segments_unenqueued = segments;
  slot.ends_early = is_any_of(slot.batch.operations, [](const OperationRef& operation) {
    return operation->request.caller_stream != nullptr;
  });
  if (segments == 0) {
    end_of_caller_memory(slot);
    slot.busy = false;
    return {};
  }
  const bool is_on_gpu = recipe.on_gpu != nullptr && take_gpu_memory(slot);
  slot.program = is_on_gpu ? recipe.on_gpu : recipe.program;
  slot.gpu = is_on_gpu ? recipe.head.gpu : kHost;
  if (!is_on_gpu) slot.runs_at_once = static_cast<std::size_t>(recipe.segments_at_once);
  unissued_ += segments * slot.program->schedule.steps.size();
  return fill(slot);
}

Status Executor::fill(Slot& slot) {
  for (std::size_t i = 0; i < slot.runs_at_once; ++i) {
    if (slot.next_segment == layout_of(slot).segments()) break;
    if (slot.runs[i].left == 0) RC_RETURN_IF_ERROR(begin(slot, slot.runs[i], i));
  }
  return {};
}

Status Executor::begin(Slot& slot, Run& run, std::size_t index) {
  const Layout& layout = layout_of(slot);
  const Program& program = *slot.program;
  const Schedule& schedule = program.schedule;
  if (run.program != &program || run.gpu != slot.gpu) {
    for (StepMemory& memory : run.memory) memory.is_located = false;
  }
  run.gpu = slot.gpu;
  RC_RETURN_IF_ERROR(place_work(run, program, layout.segments(), work_bytes(slot, program)));
  if (run.memory.size() < schedule.steps.size()) {
    run.memory.resize(schedule.steps.size());
    run.views.resize(schedule.steps.size());
    ++allocations_;
  }
  run.slot = &slot;
  run.program = &program;
  const uint32_t segment = slot.next_segment++;
  if (run.recipe != slot.batch.recipe || run.segment != segment) {
    for (StepMemory& memory : run.memory) memory.is_located = false;
    run.recipe = slot.batch.recipe;
  }
  run.segment = segment;
  run.left = static_cast<uint32_t>(schedule.steps.size());
  run.caller_left = run.caller_unenqueued = program.caller_steps;
  run.waiting = program.afters;
  if (program.has_views) run.readers = program.readers;
  for (const uint16_t step : program.first) make_ready(program, cookie(slot.lane, index, step));
  return {};
}

bool Executor::poll() {
  bool moved = jobs_ > 0 && compute().poll(*this);
  if (!has_steps()) return moved;
  for (std::size_t i = 0; i < releases_.size();) {
    const Release& release = releases_[i];
    if (!transport_.release(release.peer, release.lane, release.sequence).ok()) break;
    releases_.erase(releases_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  if (!transfers_.empty()) moved |= issue_transfers();
  if (!computes_.empty() || jobs_ > 0) moved |= issue_computes();
  if (!transfers_.empty()) moved |= issue_transfers();
  return moved;
}

bool Executor::issue_transfers() {
  bool moved = false;
  refused_.clear();
  while (!transfers_.empty()) {
    const uint64_t next = transfers_.front();
    transfers_.pop();
    if (transfer(run_of(next), step_of(next), next)) {
      --unissued_;
      moved = true;
    } else {
      refused_.push_back(next);
    }
  }
  for (const uint64_t cookie : refused_) transfers_.push(cookie);
  return moved;
}

bool Executor::issue_computes() {
  bool moved = false;
  const std::size_t refused = transfers_.size();
  for (uint64_t bytes = 0; !computes_.empty() && bytes < kComputeBytesPerPoll;) {
    const uint64_t next = computes_.front();
    Run& run = run_of(next);
    const Step& step = step_of(next);
    StepMemory& memory = run.memory[next & 0xffff];
    if (!std::exchange(memory.is_located, true)) locate_job(run, step, memory);
    const bool is_on_gpu = memory.job.on_gpu;
    const uint64_t step_bytes = memory.bytes;  // compute() may reuse the run for another segment
    if (!compute(run, step, memory, next)) break;
    computes_.pop();  // steps that became ready meanwhile are behind it
    bytes += is_on_gpu ? kGpuJobBytes : step_bytes;
    --unissued_;
    moved = true;
    // A peer reads this data while the next step computes.
    if (transfers_.size() > refused) issue_transfers();
  }
  return (jobs_ > 0 && compute().poll(*this)) || moved;
}

bool Executor::transfer(Run& run, const Step& step, uint64_t cookie) {
  Transfer transfer{step.peer, run.slot->lane, sequence(run, cookie & 0xffff), {}, cookie};
  if (step.verb == Verb::await) {
    return transport_.await(step.peer, transfer.lane, transfer.sequence, cookie).ok();
  }
  StepMemory& memory = run.memory[cookie & 0xffff];
  if (!std::exchange(memory.is_located, true)) {
    memory.to.clear();
    locate(run, step.to, slice_bytes(run, step.to), memory.to);
  }
  transfer.pieces = memory.to;
  bool is_done = false;
  switch (step.verb) {
    case Verb::send:
      transfer.is_done = &is_done;
      if (!transport_.post_send(transfer).ok()) return false;
      if (is_done) {
        finish(cookie);
      } else {
        ++sends_;
      }
      return true;
    case Verb::receive:
      return transport_.post_recv(transfer).ok();
    default:
      if (!transport_.publish(transfer).ok()) return false;
      ++sends_;
      return true;
  }
}

bool Executor::compute(Run& run, const Step& step, StepMemory& memory, uint64_t cookie) {
  if (memory.is_nothing) {
    finish(cookie);
    return true;
  }
  memory.job.cookie = cookie;
  memory.job.tries_writes = !run.slot->batch.is_trial;
  std::size_t bytes = memory.bytes;
  Status status;
  if (memory.has_views) {
    status = look_at_views(run, step, memory);
    if (status.ok()) status = check_sizes(run, step, memory.job, bytes);
  }
  if (status.ok()) {
    const bool on_gpu = memory.job.on_gpu || memory.job.views_gpu;
    status = on_gpu ? Status::busy() : compute().perform_at_once(memory.job, bytes);
  }
  if (!status.is_busy()) {
    count(memory.job, bytes);
    end_job(memory, cookie, status);
    return true;
  }
  bool is_enqueued = false;
  memory.job.is_enqueued = &is_enqueued;
  const Status submitted = compute().submit(memory.job);
  memory.job.is_enqueued = nullptr;
  if (!submitted.ok()) return false;
  ++jobs_;
  count(memory.job, bytes);
  if (is_enqueued && run.slot->ends_early) note_enqueued(cookie);
  return true;
}

// The work of a step is enqueued on GPUs. Its memory is in use until the step is done. A step that
// reads memory of peers counts when it is done, since a peer that dies or fails promises nothing.
void Executor::note_enqueued(uint64_t cookie) {
  Run& run = run_of(cookie);
  const auto step = static_cast<std::size_t>(cookie & 0xffff);
  if (!program_of(run).turns[step].touches_caller || run.memory[step].has_views) return;
  run.waiting[step] = kEnqueued;
  if (is_last_job(run, step)) ++last_jobs_;
  count_enqueued(run);
}

void Executor::count_enqueued(Run& run) {
  Slot& slot = *run.slot;
  if (--run.caller_unenqueued > 0 || --slot.caller_segments_unenqueued > 0) return;
  if (slot.caller_segments_left == 0) return;  // all is done
  slot.is_enqueued = true;
  ++enqueued_;
}

// Whether nothing follows the job of an enqueued step.
bool Executor::is_last_job(const Run& run, std::size_t step) const {
  return program_of(run).turns[step].successors.empty();
}

void Executor::count(const ComputeJob& job, uint64_t bytes) {
  if (job.sources.size() < 2) return;
  reduced_.bytes += bytes;
  if (sends_ > 0) reduced_.beside_sends += bytes;
}

void Executor::sent(uint64_t cookie) {
  --sends_;
  finish(cookie);
}

void Executor::viewed(uint64_t cookie, const View& view) {
  Seen& seen = run_of(cookie).views[cookie & 0xffff];
  seen.pieces.assign(view.pieces.begin(), view.pieces.end());
  seen.reader = view.reader;
  finish(cookie);
}

void Executor::computed(uint64_t cookie, const Status& status) {
  --jobs_;
  const Run& run = run_of(cookie);
  const auto step = static_cast<std::size_t>(cookie & 0xffff);
  if (run.waiting[step] == kEnqueued && is_last_job(run, step)) --last_jobs_;
  if (halted_) return;
  end_job(run.memory[step], cookie, status);
}

void Executor::end_job(const StepMemory& memory, uint64_t cookie, Status status) {
  if (status.ok() && memory.has_views) {
    status = end_of_viewed(run_of(cookie), step_of(cookie), memory.job.views_gpu);
  }
  if (status.ok()) {
    finish(cookie);
  } else if (status_.ok()) {
    status_ = status;  // the step stays unfinished, since the world ends
  }
}

void Executor::finish(uint64_t cookie) {
  Run& run = run_of(cookie);
  Slot& slot = *run.slot;
  const Program& program = program_of(run);
  const auto index = static_cast<std::size_t>(cookie & 0xffff);
  const Program::StepTraits& turn = program.turns[index];
  RC_ASSERT(run.left > 0);
  const bool is_counted = run.waiting[index] == kEnqueued || !slot.ends_early;
  run.waiting[index] = kDone;
  if (turn.computes && program.has_views) release_views(run, program.schedule.steps[index]);
  for (uint16_t successor : turn.successors) {
    if (--run.waiting[successor] > 0) continue;
    make_ready(program, (cookie & ~uint64_t{0xffff}) | successor);
  }
  if (turn.touches_caller && --run.caller_left == 0) {
    if (--slot.caller_segments_left == 0) end_of_caller_memory(slot);
  }
  if (turn.touches_caller && !is_counted) count_enqueued(run);
  if (--run.left == 0) end_segment(slot, run);
}

void Executor::end_segment(Slot& slot, Run& run) {
  if (--slot.segments_left == 0) {
    for (const auto& [peer, out, in] : program_of(run).traffic) {
      slot.out[peer.index()] += uint64_t{out} * layout_of(slot).segments();
      slot.in[peer.index()] += uint64_t{in} * layout_of(slot).segments();
    }
    // At a server no step touches the callers' memory.
    if (!slot.batch.operations.empty()) end_of_caller_memory(slot);
    for (Run& other : slot.runs) free_in_ring(other);
    slot.busy = false;
    return;
  }
  if (slot.next_segment < layout_of(slot).segments()) {
    const Status status = begin(slot, run, static_cast<std::size_t>(&run - slot.runs.data()));
    if (!status.ok() && status_.ok()) status_ = status;
  }
}

void Executor::release_views(Run& run, const Step& step) {
  const Program& program = program_of(run);
  program.schedule.each_view(step, [&](uint16_t index) {
    if (--run.readers[index] > 0) return;
    const Step& await = program.schedule.steps[index];
    const Release release{await.peer, run.slot->lane, sequence(run, index)};
    // Queues behind releases that wait, to keep their order.
    if (!releases_.empty() ||
        !transport_.release(release.peer, release.lane, release.sequence).ok()) {
      releases_.push_back(release);
    }
  });
}

void Executor::end_of_caller_memory(Slot& slot) {
  const Program* program = slot.batch.recipe == nullptr ? nullptr : slot.batch.recipe->program;
  has_viewed_ |= program != nullptr && program->has_views;
  for (OperationRef& operation : slot.batch.operations) finished_.push_back(std::move(operation));
  slot.batch.operations.clear();
  slot.ended.clear();
  if (std::exchange(slot.is_enqueued, false)) --enqueued_;
  slot.batch.pinned.release();
}

void Executor::halt() {
  halted_ = true;
  while (jobs_ > 0) compute().poll(*this);
}

std::vector<OperationRef> Executor::abandon() {
  for (Slot& slot : slots_) {
    end_of_caller_memory(slot);
    slot.busy = false;
    for (Run& run : slot.runs) {
      run.left = 0;
      free_in_ring(run);
    }
  }
  transfers_.clear();
  computes_.clear();
  unissued_ = 0;
  releases_.clear();
  return std::exchange(finished_, {});
}

}  // namespace rdmacoll
