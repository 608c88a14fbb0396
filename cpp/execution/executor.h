// Performs schedules: several segments of several batches at once, each step as soon as the steps
// it depends on are done. Peers are ranks of the job. Knows no algorithm; meets the wire only
// through Transport and arithmetic only through Compute.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "compute/compute.h"
#include "execution/recipe.h"
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
};

// A batch needs a slot; slot = lane, so that batches in flight never share a sequence space. Each
// process set has slots of its own, which carry the same numbers on all of its members: what a set
// has decided waits for none of another set's batches, which its peers may not have begun.
inline constexpr int kLanesMax = 256;
static_assert(kLanesMax - 1 <= std::numeric_limits<Lane>::max());
inline constexpr int kBatchesInFlight = 4;       // of the world
inline constexpr int kBatchesInFlightOfSet = 2;  // of any other set
struct Lanes {
  std::size_t first = 0;
  std::size_t count = kBatchesInFlight;  // a power of two

  std::size_t of(uint64_t sequence) const { return first + (sequence & (count - 1)); }
};

class Executor final : public ComputeSink {
 public:
  Executor(int ranks, Transport& transport, Compute& compute, MemoryPool& pool);
  ~Executor() override;

  // Before the first batch on these lanes, and after the last one, when they are idle: another set
  // may have them then.
  void open(const Lanes& lanes);
  void close(const Lanes& lanes);

  // Batches start in the order of their sequence: all ranks then number their transfers alike.
  bool has_room(const Lanes& lanes, uint64_t sequence) const {
    return !slots_[lanes.of(sequence)].busy;
  }
  Status start(const Lanes& lanes, Batch batch);
  // The same of an operation that is alone, and whose recipe it has.
  Status start(const Lanes& lanes, uint64_t sequence, const OperationRef& operation);
  // Issues what can be issued. Returns whether anything moved.
  bool poll();

  // From the transport, by cookie.
  void sent(uint64_t cookie);
  void received(uint64_t cookie) { finish(cookie); }
  void viewed(uint64_t cookie, const View& view);
  void computed(uint64_t cookie, const Status& status) override;

  // Operations whose memory is free again, in the order in which they ended.
  void take_finished(std::vector<OperationRef>& finished) {
    finished.swap(finished_);
    has_viewed_ = false;
  }
  bool has_finished() const { return !finished_.empty(); }
  // One of them has read memory of a peer.
  bool has_viewed() const { return has_viewed_; }
  const Status& status() const { return status_; }  // a compute step failed: the world is over
  bool idle() const;
  bool idle(const Lanes& lanes) const { return !runs_before(lanes, UINT64_MAX); }
  bool needs(int peer) const;  // a step with this peer is not done
  bool runs_before(const Lanes& lanes, uint64_t sequence) const;
  // How many peers have given all that a segment takes, while it waits for others.
  int peers_waiting() const;
  bool has_steps() const { return !transfers_.empty() || !computes_.empty() || !releases_.empty(); }
  // Some step is still to be issued by this rank, now or when others are done.
  bool has_to_issue() const { return unissued_ > 0 || jobs_ > 0 || !releases_.empty(); }
  // Waits for the jobs that run; nothing that they end is acted upon any more.
  void halt();
  // After halt(), and after the transport has dropped its peers: lets everything go and returns the
  // operations that were in flight.
  std::vector<OperationRef> abandon();

  // What reductions have made; `beside_sends`: while something that this rank gives was under way,
  // so that no link waited for arithmetic.
  struct Reduced {
    uint64_t bytes = 0;
    uint64_t beside_sends = 0;
  };
  const Reduced& reduced() const { return reduced_; }
  uint64_t batches() const { return batches_; }
  uint64_t allocations() const { return allocations_; }
  std::string state() const;

 private:
  // What a step's transfer or job points to. It holds for the next run of the same segment of the
  // same recipe, too.
  struct StepMemory {
    bool is_located = false;
    bool is_nothing = false;  // a job that would copy memory onto itself
    bool has_views = false;   // a job with operands that are others each time
    uint64_t bytes = 0;       // of each operand of the job's dtype
    std::vector<Piece> to;
    std::vector<Piece> sources;
    std::vector<Operand> operands;
    ComputeJob job;
  };
  struct Seen {  // a view, in memory of ours: a peer that fails takes its own away
    std::vector<RemotePiece> pieces;
    const RemoteReader* reader = nullptr;
  };
  struct Slot;
  static constexpr uint16_t kDone = 0xffff;  // in Run::waiting: nothing is waited for any more
  struct Run {                               // one segment in flight
    Slot* slot = nullptr;
    const Program* program = nullptr;
    RecipeRef recipe;  // of `memory`
    uint32_t segment = 0;
    uint32_t left = 0;         // steps; 0: free
    uint32_t caller_left = 0;  // steps that use the caller's memory
    std::vector<uint16_t> waiting;
    std::vector<uint16_t> readers;
    std::vector<Seen> views;
    std::vector<StepMemory> memory;
    std::byte* allocation = nullptr;
    std::byte* work = nullptr;  // in the allocation
    uint64_t work_bytes = 0;    // of the allocation
    uint64_t turn = 0;          // which place is next
  };
  struct Slot {
    Lane lane = 0;  // its number
    bool busy = false;
    Batch batch;
    uint32_t next_segment = 0;
    uint32_t segments_left = 0;         // until the slot is free
    uint32_t caller_segments_left = 0;  // until the operations are done
    std::vector<uint64_t> out, in;      // by peer: sequence base of this batch
    std::array<Run, kSegmentsInFlight> runs;
  };
  struct Release {
    int peer;
    Lane lane;
    uint64_t sequence;
  };

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
  Status fill(Slot& slot);  // start segments while there is a free run
  Status begin(Slot& slot, Run& run, std::size_t index);
  Status place_work(Run& run, const Program& program, uint32_t segments, uint64_t bytes);
  bool allocate_work(Run& run, uint64_t bytes);
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
  void look_at_views(const Run& run, const Step& step, StepMemory& memory);
  void count(const ComputeJob& job, uint64_t bytes);
  void end_job(uint64_t cookie, const Status& status);
  void finish(uint64_t cookie);
  void end_segment(Slot& slot, Run& run);
  void release_views(Run& run, const Step& step);
  void end_of_caller_memory(Slot& slot);

  void locate(const Run& run, const Slice& slice, uint64_t bytes, std::vector<Piece>& pieces) const;
  void locate_in_image(const Run& run, const Slice& slice, std::byte* image,
                       std::vector<Piece>& pieces) const;
  uint64_t slice_bytes(const Run& run, const Slice& slice) const;
  uint64_t sequence(const Run& run, std::size_t index) const;  // of a step's transfer

  const std::size_t ranks_;
  Transport& transport_;
  Compute& compute_;
  MemoryPool& pool_;
  std::vector<Slot> slots_;  // they stay where they are
  // Steps to issue. Transfers go first: the peer can use what is done while we compute.
  RingQueue<uint64_t> transfers_, computes_;
  std::vector<uint64_t> refused_;  // transfers that were busy in this poll
  std::vector<std::size_t> piece_ends_;
  std::vector<Release> releases_;  // that were busy
  std::vector<OperationRef> finished_;
  bool has_viewed_ = false;
  Status status_;
  std::size_t jobs_ = 0;
  std::size_t sends_ = 0;  // sent or published, and their memory is not free yet
  Reduced reduced_;
  std::size_t unissued_ = 0;  // steps of batches in flight
  bool halted_ = false;
  uint64_t batches_ = 0;
  uint64_t allocations_ = 0;
};

}  // namespace rdmacoll
