// Reductions and copies. They are posted and polled like transfers, since they take time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "memory/piece.h"
#include "memory/stream_order.h"

namespace rdmacoll {

// One operand: local pieces, or a view of a peer's memory. All operands of a job have equal bytes,
// in different pieces. An operand that is float32 in a job of 16-bit floats has twice as many.
struct Operand {
  std::span<const Piece> pieces;
  std::span<const RemotePiece> remote;  // used when `pieces` is empty
  const RemoteReader* reader = nullptr;
  bool wide = false;

  std::size_t width() const { return wide ? 2 : 1; }
};

// to = scale(reduce(sources)) in the canonical order: one binary tree over the sources, split at
// the largest power of two below the count. 16-bit floats are summed in float32 and rounded once. A
// job with one source is a copy (scaled if divisor or factor say so).
struct ComputeJob {
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;  // for an average, pass sum and a divisor
  std::span<const Piece> to;    // may be the same memory as a source, never a shifted overlap
  std::span<const Operand> sources;
  double divisor = 1.0;  // result / divisor, then * factor; both 1: untouched bits
  double factor = 1.0;
  uint64_t cookie = 0;
  bool past_cache = false;   // `to` is no source, and is not needed in this cache soon
  bool shown = false;        // another rank reads `to` next, and answers elsewhere
  bool is_lent = false;      // another rank reads `to` next, and answers there or has asked there
  bool tries_writes = true;  // such writes may try other ways (StorePolicy)
  bool wide = false;         // `to` is float32 in a job of 16-bit floats: a partial sum
  bool mixes = false;        // `to` or an operand is wide, or `prescale` is not 1
  double prescale = 1.0;     // 16-bit operands are first multiplied by it, in float32
  // Some of the pieces are memory of GPUs, of this rank or of peers. Others may be host memory.
  // Such a job is submitted, never performed at once.
  bool on_gpu = false;
  bool views_gpu = false;  // as on_gpu, because of a peer's pieces, which change in each run
  // If not null, submit() sets it if all work of the job is on GPUs, and is enqueued there.
  bool* is_enqueued = nullptr;

  std::size_t width() const { return wide ? 2 : 1; }  // width of `to`
};

class ComputeSink {
 public:
  virtual ~ComputeSink() = default;
  virtual void computed(uint64_t cookie, const Status& status) = 0;
};

// Work on GPUs so far.
struct GpuCounters {
  uint64_t bytes_staged = 0;        // copied between host and GPUs
  uint64_t bytes_written = 0;       // to GPUs, by processors (GDRCopy)
  uint64_t bytes_between_gpus = 0;  // read from work memory of other ranks on GPUs
  uint64_t kernel_launches = 0;
  uint64_t preparing = 0;  // GPUs that are being made ready for sums
};

// Only the holder of the baton calls it. The spans of a job and their targets stay valid until
// `computed`.
class Compute {
 public:
  virtual ~Compute() = default;
  virtual Status submit(const ComputeJob& job) = 0;  // busy: poll, then offer it again
  // Performs a job on the calling thread and returns its result, if that takes less time than a
  // hand-over. The operands have been measured (`bytes` each). Busy: submit it instead.
  virtual Status perform_at_once(const ComputeJob& job, std::size_t bytes) = 0;
  virtual bool poll(ComputeSink& sink) = 0;
  // Lets another thread run the task. A sleeper is woken when the task has ended, as after a job.
  // False: there is no such thread.
  virtual bool hand_over(std::function<void()>) { return false; }
  // Waits until all tasks have ended. Called by a task, it returns at once.
  virtual void finish_tasks() {}
  // True: the caller may sleep, and a job that ends on another thread wakes it through its Waker.
  virtual bool arm() = 0;
  // When a sleeper must poll at the latest, since no thread may wake it.
  virtual Nanoseconds next_deadline() const { return kNever; }
  // Drops the jobs that no thread has begun, and reports them as failed.
  virtual void drop_waiting() {}
  virtual uint64_t bytes_copied() const { return bytes_copied_; }  // by jobs with one source
  virtual GpuCounters gpu_counters() const { return {}; }
  // The end of all work that is enqueued on GPUs now. Null: there is none.
  virtual std::shared_ptr<const GpuEnd> gpu_end() const { return nullptr; }

 protected:
  // Counts a job that is performed. Called once for each job.
  void count(const ComputeJob& job, std::size_t bytes) {
    if (job.sources.size() == 1) bytes_copied_ += bytes;
  }

 private:
  uint64_t bytes_copied_ = 0;
};

}  // namespace rdmacoll
