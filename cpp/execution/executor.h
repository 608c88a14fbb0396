// Runs schedules. Several segments of several batches run at once, and each step runs once the
// steps before it are done. Peers are ranks of the job. The executor knows no algorithms. It moves
// bytes only through Transport, and computes only through Compute.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "compute/compute.h"
#include "execution/pinned_memory.h"
#include "execution/recipe.h"
#include "execution/ring_allocator.h"
#include "memory/gpu_work.h"
#include "memory/pool.h"
#include "operation/operation.h"
#include "transport/queues.h"
#include "transport/transport.h"

namespace rdmacoll {

// Operations that run together.
struct Batch {
  uint64_t sequence = 0;
  std::vector<OperationRef> operations;
  RecipeRef recipe;
  // The batch is timed beside others, so its writes go the settled way: those that try other ways
  // (StorePolicy::begin) would take several times as long now and then.
  bool is_trial = false;
  PinnedMemory pinned = {};  // until the callers' memory is free again
};

// A batch occupies a slot. Slots equal lanes, so batches in flight never share a sequence space.
// Each process set has its own slots, with the same numbers on all its members. So a set never
// waits for a batch of another set, which its peers may not have begun.
inline constexpr int kLanesMax = 256;
static_assert(kLanesMax - 1 <= std::numeric_limits<Lane>::max());
inline constexpr int kBatchesInFlight = 4;       // for the world
inline constexpr int kBatchesInFlightOfSet = 2;  // for every other set
struct Lanes {
  std::size_t first = 0;
  std::size_t count = kBatchesInFlight;  // a power of two

  std::size_t of(uint64_t sequence) const { return first + (sequence & (count - 1)); }
};

class Executor final : public ComputeSink {
 public:
  // `gpu_work`: null until a GPU is used. `ring_bytes`: the size of the ring of work memory.
  // `shared_cache_bytes`: the cache that the ranks of this node share; 0: it is not known.
  Executor(int ranks, Transport& transport, Compute& compute, MemoryPool& pool,
           const std::atomic<GpuWork*>& gpu_work, uint64_t ring_bytes, uint64_t shared_cache_bytes);
  ~Executor() override;

  Compute& compute() const { return *compute_.load(std::memory_order_acquire); }
  // Uses another Compute from now on, to which the earlier one belongs. From any thread.
  void use(Compute& compute) { compute_.store(&compute, std::memory_order_release); }

  // open() comes before the first batch on these lanes. close() comes after the last one, when the
  // lanes are idle. Afterwards another set may use them.
  void open(const Lanes& lanes);
  void close(const Lanes& lanes);

  // Batches of a lane start in the order of their sequence, so that all ranks number their
  // transfers alike.
  bool has_room(const Lanes& lanes, uint64_t sequence) const {
    return !slots_[lanes.of(sequence)].busy;
  }
  Status start(const Lanes& lanes, Batch batch);
  // Starts a batch of one operation, with the recipe that the operation holds.
  Status start(const Lanes& lanes, uint64_t sequence, const OperationRef& operation);
  // Issues all steps that are ready. Returns whether anything moved.
  bool poll();

  // Completions from the transport and from compute. `cookie` identifies the step.
  void sent(uint64_t cookie);
  void received(uint64_t cookie) { finish(cookie); }
  void viewed(uint64_t cookie, const View& view);
  void computed(uint64_t cookie, const Status& status) override;

  // The operations whose memory is free again, in the order of their completion.
  void take_finished(std::vector<OperationRef>& finished) {
    finished.swap(finished_);
    has_viewed_ = false;
  }
  bool has_finished() const { return !finished_.empty(); }
  // Whether all GPU work is enqueued that uses the memory of some operations.
  bool has_enqueued() const { return enqueued_ > 0; }
  // Finishes those of them that may end before their work is done, and for which `may_end` returns
  // true. Their batch keeps its memory until then.
  template <typename MayEnd>
  void finish_enqueued(MayEnd may_end) {
    for (Slot& slot : slots_) {
      if (!std::exchange(slot.is_enqueued, false)) continue;
      --enqueued_;
      finish_enqueued(slot, [&](const Operation& operation) {
        return operation.request.caller_stream != nullptr && may_end(operation);
      });
    }
  }
  // Whether one of them has read memory of a peer.
  bool has_viewed() const { return has_viewed_; }
  // Not ok: a compute step failed, and the world ends. Code::mismatch: a peer's data was the cause.
  const Status& status() const { return status_; }
  bool idle() const;
  bool idle(const Lanes& lanes) const { return !runs_before(lanes, UINT64_MAX); }
  bool needs(JobRank peer) const;  // a step with this peer is not done
  bool runs_before(const Lanes& lanes, uint64_t sequence) const;
  // Visits the operations of these lanes that are not done, with the sequence of their batch.
  template <typename Visit>
  void each_operation(const Lanes& lanes, Visit visit) const {
    for (std::size_t lane = lanes.first; lane < lanes.first + lanes.count; ++lane) {
      const Slot& slot = slots_[lane];
      if (!slot.busy) continue;
      for (const OperationRef& operation : slot.batch.operations) {
        visit(slot.batch.sequence, *operation);
      }
    }
  }
  // The number of peers that have delivered all their data to a segment that still waits for
  // others. The maximum over the batches in flight.
  int peers_waiting() const;
  bool has_steps() const { return !transfers_.empty() || !computes_.empty() || !releases_.empty(); }
  // Whether this rank still has to issue a step, now or after other steps.
  // Without jobs whose end nothing waits for: the next caller, or the thread, finds it.
  bool has_to_issue() const { return unissued_ > 0 || jobs_ > last_jobs_ || !releases_.empty(); }
  // Waits for running jobs. Their completions have no effect.
  void halt();
  // Releases everything, after halt() and after the transport has dropped its peers. Returns the
  // operations that were in flight.
  std::vector<OperationRef> abandon();

  // Bytes reduced so far. `beside_sends`: the part that was reduced while this rank had a send in
  // progress. The links were busy meanwhile.
  struct Reduced {
    uint64_t bytes = 0;
    uint64_t beside_sends = 0;
  };
  const Reduced& reduced() const { return reduced_; }
  uint64_t batches() const { return batches_; }
  uint64_t allocations() const { return allocations_; }
  std::string state() const;

 private:
  // The memory of a step's transfer or job. It stays valid while the same segment of the same
  // recipe runs again.
  struct StepMemory {
    bool is_located = false;
    bool is_nothing = false;  // the job would copy memory onto itself
    bool has_views = false;   // the operands include views, which change in each run
    uint64_t bytes = 0;       // bytes of each operand, in the job's dtype
    std::vector<Piece> to;
    std::vector<Piece> sources;
    std::vector<Operand> operands;
    ComputeJob job;
  };
  struct Seen {  // a copy of a view's description, which survives its peer
    std::vector<RemotePiece> pieces;
    const RemoteReader* reader = nullptr;
  };
  struct Slot;
  static constexpr uint16_t kDone = 0xffff;      // in Run::waiting: the step is done
  static constexpr uint16_t kEnqueued = 0xfffe;  // it is a job whose work is enqueued on GPUs
  struct Run {                                   // one segment in flight
    Slot* slot = nullptr;
    const Program* program = nullptr;
    RecipeRef recipe;  // the recipe that `memory` belongs to
    uint32_t segment = 0;
    uint32_t left = 0;               // steps that are not done; 0: this run is free
    uint32_t caller_left = 0;        // open steps that use the caller's memory
    uint32_t caller_unenqueued = 0;  // those of them that are not enqueued on GPUs
    std::vector<uint16_t> waiting;
    std::vector<uint16_t> readers;
    std::vector<Seen> views;
    std::vector<StepMemory> memory;
    std::byte* allocation = nullptr;
    std::byte* work = nullptr;  // position in the allocation, or in the GPU's
    Gpu gpu = kHost;            // the GPU that has `work`
    uint64_t work_bytes = 0;    // size of the work memory in the allocation
    std::byte* gpu_allocation = nullptr;
    Gpu gpu_of_allocation = kHost;
    uint64_t gpu_bytes = 0;
    std::optional<uint64_t> ring_offset;  // the offset of `work` in the ring, if it lies there
  };
  struct Slot {
    Lane lane = 0;  // equals its index
    bool busy = false;
    Batch batch;
    const Program* program = nullptr;  // the one of the recipe that runs
    Gpu gpu = kHost;                   // the GPU that has its work memory
    uint32_t next_segment = 0;
    uint32_t segments_left = 0;         // segments until the slot is free
    uint32_t caller_segments_left = 0;  // segments until the operations are done
    // The same until all their work is enqueued. Counted if `ends_early`: an operation may end
    // then.
    uint32_t caller_segments_unenqueued = 0;
    bool ends_early = false;
    bool is_enqueued = false;         // it is, and finish_enqueued() was not called since
    std::vector<OperationRef> ended;  // such operations, whose results must stay
    std::vector<uint64_t> out, in;    // by peer: the first sequence of this batch
    // With work memory on a GPU, more segments are in flight: two processes take turns there.
    std::vector<Run> runs = std::vector<Run>(kSegmentsInFlight);
    std::size_t runs_at_once = kSegmentsInFlight;
  };
  struct Release {
    int peer;
    Lane lane;
    uint64_t sequence;
  };

  static constexpr std::size_t kRunsMax = 128;
  static constexpr uint64_t cookie(std::size_t slot, std::size_t run, std::size_t step) {
    return slot << 24 | run << 16 | step;
  }
  Run& run_of(uint64_t cookie) { return slots_[cookie >> 24].runs[cookie >> 16 & 0xff]; }
  const Step& step_of(uint64_t cookie) {
    return program_of(run_of(cookie)).schedule.steps[cookie & 0xffff];
  }

  static const Layout& layout_of(const Slot& slot) { return slot.batch.recipe->layout; }
  static const Program& program_of(const Run& run) { return *run.program; }

  Status start(Slot& slot);
  Status fill(Slot& slot);  // starts segments while a run is free
  Status begin(Slot& slot, Run& run, std::size_t index);
  static uint64_t work_bytes(const Slot& slot, const Program& program);
  bool take_gpu_memory(Slot& slot);
  std::size_t take_gpu_memory(Slot& slot, std::size_t runs, uint64_t bytes);
  void drop_gpu_memory(Run& run);
  // So many bytes of the ring, or null: the next ones in turn, or some near by.
  std::byte* allocate_in_ring(Run& run, uint64_t bytes, bool in_turn);
  void free_in_ring(Run& run);
  Status place_work(Run& run, const Program& program, uint32_t segments, uint64_t bytes);
  static void move_work(Run& run, std::byte* work);
  void make_ready(const Program& program, uint64_t cookie) {
    (program.turns[cookie & 0xffff].computes ? computes_ : transfers_).push(cookie);
  }
  bool issue_transfers();
  bool issue_computes();
  bool transfer(Run& run, const Step& step, uint64_t cookie);
  bool compute(Run& run, const Step& step, StepMemory& memory, uint64_t cookie);
  void locate_job(const Run& run, const Step& step, StepMemory& memory);
  void mark_widths(const Run& run, const Step& step, std::span<const Slice> sources,
                   StepMemory& memory);
  // Fails if the step writes to a view that cannot be written, since a peer can send any view.
  Status look_at_views(const Run& run, const Step& step, StepMemory& memory);
  // As measure(). If a peer has shown data of another length, the status blames it.
  Status check_sizes(const Run& run, const Step& step, const ComputeJob& job,
                     std::size_t& bytes) const;
  static Status misfit_of(const Run& run, const Slice& view, std::string what);
  void count(const ComputeJob& job, uint64_t bytes);
  void note_enqueued(uint64_t cookie);
  void count_enqueued(Run& run);
  bool is_last_job(const Run& run, std::size_t step) const;
  template <typename MayEnd>
  void finish_enqueued(Slot& slot, MayEnd may_end) {
    std::shared_ptr<const GpuEnd> end = compute().gpu_end();
    std::vector<OperationRef>& operations = slot.batch.operations;
    const auto stay =
        std::stable_partition(operations.begin(), operations.end(),
                              [&](const OperationRef& operation) { return !may_end(*operation); });
    for (auto it = stay; it != operations.end(); ++it) {
      (*it)->gpu_end = end;
      slot.ended.push_back(*it);
      finished_.push_back(std::move(*it));
    }
    operations.erase(stay, operations.end());
    has_viewed_ |= slot.program->has_views;
  }
  Status end_of_viewed(const Run& run, const Step& step, bool on_gpu);
  // The step has `memory`.
  void end_job(const StepMemory& memory, uint64_t cookie, Status status);
  void finish(uint64_t cookie);
  void end_segment(Slot& slot, Run& run);
  void release_views(Run& run, const Step& step);
  void end_of_caller_memory(Slot& slot);

  void locate(const Run& run, const Slice& slice, uint64_t bytes, std::vector<Piece>& pieces) const;
  void locate_in_image(const Run& run, const Slice& slice, std::byte* image,
                       std::vector<Piece>& pieces) const;
  uint64_t slice_bytes(const Run& run, const Slice& slice) const;
  uint64_t sequence(const Run& run, std::size_t index) const;  // the sequence of a step's transfer

  const std::size_t ranks_;
  Transport& transport_;
  std::atomic<Compute*> compute_;
  MemoryPool& pool_;
  const std::atomic<GpuWork*>& gpu_work_;
  const uint64_t shared_cache_bytes_;
  RingAllocator ring_;
  std::byte* ring_memory_ = nullptr;  // null until a batch needs it
  std::vector<Slot> slots_;           // never reallocated, since runs point to slots
  // Ready steps. Transfers are issued first, so that peers can continue while this rank computes.
  RingQueue<uint64_t> transfers_, computes_;
  std::vector<uint64_t> refused_;  // transfers that the transport refused in this poll
  std::vector<std::size_t> piece_ends_;
  std::vector<Release> releases_;  // refused by the transport; sent again in poll()
  std::vector<OperationRef> finished_;
  bool has_viewed_ = false;
  Status status_;
  std::size_t jobs_ = 0;
  std::size_t last_jobs_ = 0;  // those on GPUs that no step, peer or operation waits for
  std::size_t enqueued_ = 0;   // slots with `is_enqueued`
  std::size_t sends_ = 0;      // sends and publishes whose memory is still in use
  Reduced reduced_;
  std::size_t unissued_ = 0;  // steps of batches in flight
  bool halted_ = false;
  uint64_t batches_ = 0;
  uint64_t allocations_ = 0;
};

}  // namespace rdmacoll
