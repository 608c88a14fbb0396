// One submitted collective: the caller's request, and its status.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "base/status.h"
#include "memory/memory_kind.h"
#include "memory/stream_order.h"
#include "operation/kind.h"

namespace rdmacoll {

struct TensorRef {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::vector<int64_t> dims;
  std::string label;
  Gpu gpu = kHost;  // the GPU that has input and output, and the result of this tensor

  int64_t elements() const;
  uint64_t bytes(Dtype dtype) const { return static_cast<uint64_t>(elements()) * size_of(dtype); }
};

// The limit for a name, a manifest and a refusal's reason. Longer names are refused, longer reasons
// are cut.
inline constexpr std::size_t kNameBytesMax = 4096;

// Marks a join. Unnamed operations count from 0.
inline constexpr int64_t kJoinIteration = -1;

// The properties that all ranks must agree on, besides the shapes of the tensors.
struct Terms {
  Kind kind = Kind::allreduce;
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;
  SetRank root{0};
  double prescale = 1.0;
  double postscale = 1.0;
  std::string name;      // "" for an unnamed operation
  std::string manifest;  // describes the gradient list whose first part this is
  std::string group;     // the dtypes of a group with several, on its first operation
  // Allreduce: outputs may lie in memory that all ranks of the node share.
  bool shares_results = false;
  // If not empty, the reason why this rank's caller was refused. Such a request keeps its place in
  // the order but has no data. All ranks that submitted the operation receive the reason.
  std::string refusal;
};

struct Request : Terms {
  uint32_t set = 0;       // the process set
  int64_t iteration = 0;  // the loop iteration, or the number of an unnamed operation
  std::string listing;    // names of variables whose order matters: operation/listing.h
  std::vector<TensorRef> tensors;
  std::vector<int64_t> splits;  // alltoall, scatter's root: rows for each rank; empty: equal
  // For kinds with KindRow::makes_result: returns memory for the next result, or null to fail. If
  // it is empty, the operation owns the results.
  std::function<void*(const std::vector<int64_t>& dims)> allocate;
  // For tensors in memory of GPUs: makes the memory of a result that the operation owns, or null to
  // fail. It has an address even for no bytes.
  std::function<std::shared_ptr<std::byte[]>(uint64_t bytes)> result_memory;
  // For tensors in memory of GPUs: the operation begins once the caller's stream has reached it.
  std::shared_ptr<StreamOrder> order;
  // If not null, the operation may end while its last work on GPUs is enqueued and not done. The
  // caller then lets this stream follow Operation::gpu_end.
  std::shared_ptr<StreamOrder> caller_stream;
  // If the results are shared, receives their address and the reference that keeps them alive.
  // Otherwise `allocate` supplies the outputs that have no memory.
  std::function<void(std::size_t tensor, std::byte* memory, const std::shared_ptr<void>& hold)>
      placed;
  std::function<void(const Status&)> done;

  uint64_t bytes() const;  // size of this rank's inputs
  // size of each result that has the shape of its input
  std::vector<uint64_t> result_bytes() const;
  // "conv1/kernel, conv1/bias and 4 more". Returns "" if no tensor has a label other than the name.
  std::string labels() const;
};

// Validates this rank's request before it is accepted: dtype, operator, root, dimensions, sizes and
// splits. Returns Code::invalid with the reason.
Status check(const Request& request, SetRank rank, int ranks);

struct Recipe;

// Shared by the caller's handle and the engine. The last reference frees it.
class Operation {
 public:
  explicit Operation(Request request);

  // Called once, by the holder of the baton or by the thread that it delegates to. Afterwards the
  // engine does not touch the caller's memory, except for the work before `gpu_end`.
  void complete(Status status);
  bool done() const { return done_.load(std::memory_order_acquire) == kDone; }
  // Returns when the operation is done, when `timeout` has passed, or when nudge() was called after
  // `ticket` was taken. Check done() afterwards.
  uint32_t ticket() const { return done_.load(std::memory_order_seq_cst); }
  void wait(uint32_t ticket, Nanoseconds timeout);
  void nudge();
  const Status& status() const { return status_; }  // valid once done
  // Prepares the next run of a prepared operation. done() is false until that run ends.
  void rearm();

  // The request of the caller.
  Request request;
  std::string descriptor;  // the encoded properties that all ranks must agree on
  // A prepared operation runs many times. Its request is checked once, and its results keep their
  // memory while their dims stay equal.
  bool is_prepared = false;
  bool is_placeholder = false;  // this rank's caller never submits it
  // The caller's thread drives the engine and waits for this operation.
  bool is_driven_by_caller = false;
  int64_t next_number = 0;  // join: the number of this rank's next unnamed operation
  // The other operations of a group with several dtypes. They begin when this first one succeeds,
  // and fail with its error otherwise. So ranks agree about the group before they run its parts.
  std::vector<std::shared_ptr<Operation>> behind;

  struct Result {
    std::vector<int64_t> dims;
    uint64_t bytes = 0;
    // Used if the request has no `allocate`. The memory is not cleared, since clearing would take
    // as long as the operation. The caller of a prepared operation shares it, because the next run
    // may need another size.
    std::shared_ptr<std::byte[]> memory;
  };
  // For kinds with KindRow::makes_result: one for each tensor. An alltoall also has the row counts
  // received from each rank.
  std::vector<Result> results;
  // After success: the end of the operation's work on GPUs, which may still use the memory of the
  // caller. Null: the memory is free.
  std::shared_ptr<const GpuEnd> gpu_end;

  // The progress of the operation so far.
  struct State {
    Nanoseconds taken_at = 0;            // when the engine took it
    uint64_t sequence = 0;               // the sequence of its decision
    bool awaits_first = false;           // its group's first operation has not ended
    bool has_said_names = false;         // was announced, including new names
    bool has_ended = false;              // set by the engine, which completes an operation once
    bool has_moved_results = false;      // since a caller last read their addresses
    std::shared_ptr<void> results_hold;  // keeps the shared results of the node alive
    Result zeros;                        // the zeros that a placeholder sends
  };
  State state;

  // Repeated runs find here what an earlier run has looked up.
  struct Caches {
    // Plan mode: the era, and the planned decision that this operation was found to match.
    uint32_t planned_era = 0;
    const void* planned_as = nullptr;
    // Planner: the last recipe, and the topology version it was built for.
    std::shared_ptr<const Recipe> recipe;
    uint64_t topology_version = 0;
  };
  Caches caches;

  std::string label() const;  // "allreduce 'bucket_0' (conv1/kernel, conv1/bias)"

 private:
  Status status_;
  static constexpr uint32_t kDone = 1;
  std::atomic<uint32_t> done_{0};  // kDone, or an even number that each nudge changes
  std::atomic<uint32_t> waiters_{0};
};

using OperationRef = std::shared_ptr<Operation>;

// Encodes the properties that must be equal on all ranks: kind, dtype, operator, root, scales,
// name, shapes, manifest and dtypes of the group. Shapes omit the first dimension if it may differ.
std::string encode_descriptor(const Request& request);
std::string_view descriptor_name(std::string_view descriptor);
// A tensor beyond the first few, which a description of the descriptor shows in addition.
struct ShownTensor {
  std::size_t position = 0;
  std::string name;  // "" if unknown
};
// "allreduce of float32 (3, 4), average"
std::string describe_descriptor(std::string_view descriptor,
                                const std::vector<ShownTensor>& shown = {});
std::size_t tensors_of(std::string_view descriptor);
// The first tensor whose shape differs, or that only one descriptor has. Empty if there is none.
std::optional<std::size_t> first_difference(std::string_view descriptor, std::string_view other);
// "2 gradients (2 dense of 24 bytes ...), average". Returns "" without a manifest.
std::string describe_manifest(std::string_view descriptor);
// The decoded descriptor. Its fields decide which operations may share a batch.
struct Descriptor : Terms {
  std::vector<std::vector<int64_t>> shapes;

  uint64_t bytes() const;
};
bool decode_descriptor(std::string_view bytes, Descriptor& descriptor);
// Whether the descriptor belongs to a refused request, which never runs.
bool is_refusal(std::string_view descriptor);
// "refused its allreduce: ..."
std::string describe_refusal(std::string_view descriptor);

}  // namespace rdmacoll
