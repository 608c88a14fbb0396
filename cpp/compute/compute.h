// Reductions and copies, posted and polled like transfers: never assumed to be free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "memory/piece.h"

namespace rdmacoll {

// One operand: local pieces, or a view of a peer's memory. All operands of a job have equal bytes,
// cut differently into pieces; those that are float32 in a job of 16-bit floats have twice as many.
struct Operand {
  std::span<const Piece> pieces;
  std::span<const RemotePiece> remote;  // used when `pieces` is empty
  const RemoteReader* reader = nullptr;
  bool wide = false;

  std::size_t width() const { return wide ? 2 : 1; }
};

// to = scale(reduce(sources)) in the canonical order: one binary tree over the sources, split at
// the largest power of two below the count. 16-bit floats are summed in float32 and rounded once.
// With one source it is a copy (scaled when divisor or factor say so).
struct ComputeJob {
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;  // average is the caller's business: sum, and a divisor
  std::span<const Piece> to;    // may be the same memory as a source, never a shifted overlap
  std::span<const Operand> sources;
  double divisor = 1.0;  // result / divisor, then * factor; both 1: untouched bits
  double factor = 1.0;
  uint64_t cookie = 0;
  bool past_cache = false;  // `to` is no source, and is not needed soon
  bool shown = false;       // another rank reads `to` next
  bool wide = false;        // `to` is float32 in a job of 16-bit floats, and is not finished
  bool mixes = false;       // it is, or an operand is, or `prescale` is not 1
  double prescale = 1.0;    // operands of 16-bit floats are multiplied by it first, in float32

  std::size_t width() const { return wide ? 2 : 1; }  // of `to`
};

class ComputeSink {
 public:
  virtual ~ComputeSink() = default;
  virtual void computed(uint64_t cookie, const Status& status) = 0;
};

// Called by the holder of the baton only. The spans of a job (and what they point to) stay valid
// until `computed`.
class Compute {
 public:
  virtual ~Compute() = default;
  virtual Status submit(const ComputeJob& job) = 0;  // busy: poll, then offer it again
  // Performs a job whose operands have been measured (`bytes` each) on the calling thread and
  // reports it by its result, where that takes less time than handing it over. Busy: submit it.
  virtual Status perform_at_once(const ComputeJob& job, std::size_t bytes) = 0;
  virtual bool poll(ComputeSink& sink) = 0;
  // Has another thread run the task; a sleeper is woken when it has ended, as by a job. False:
  // there is no such thread.
  virtual bool hand_over(std::function<void()>) { return false; }
  // Waits until all tasks have ended; a task does not.
  virtual void finish_tasks() {}
  // A sleeper must be woken through its Waker when a job ends on another thread.
  virtual bool arm() = 0;
  // What nobody has begun is not done, and reported as failed.
  virtual void drop_waiting() {}
  virtual uint64_t bytes_copied() const { return bytes_copied_; }  // by jobs with one source

 protected:
  // Of a job that is performed, once.
  void count(const ComputeJob& job, std::size_t bytes) {
    if (job.sources.size() == 1) bytes_copied_ += bytes;
  }

 private:
  uint64_t bytes_copied_ = 0;
};

}  // namespace rdmacoll
