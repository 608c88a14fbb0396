// One submitted collective: what the caller asked for, and how it ended.
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
#include "base/status.h"
#include "operation/kind.h"

namespace rdmacoll {

struct TensorRef {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::vector<int64_t> dims;
  std::string label;

  int64_t elements() const;
  uint64_t bytes(Dtype dtype) const { return static_cast<uint64_t>(elements()) * size_of(dtype); }
};

// Of a name, a manifest, or a reason: longer ones are refused, reasons cut.
inline constexpr std::size_t kNameBytesMax = 4096;

// What tells a join from unnamed operations, which are counted from 0.
inline constexpr int64_t kJoinIteration = -1;

struct Request {
  uint32_t set = 0;  // of processes, by number; ranks are those of the set
  Kind kind = Kind::allreduce;
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string name;       // "": unnamed
  int64_t iteration = 0;  // of a loop; the running number of an unnamed operation
  std::string manifest;   // of the list of gradients that this is the first part of
  std::string listing;    // of variables, where their order matters: operation/listing.h
  std::string group;      // the dtypes of a group of several, at its first operation
  std::vector<TensorRef> tensors;
  std::vector<int64_t> splits;  // alltoall, scatter at the root: rows for each rank; empty: even
  // Where KindRow::makes_result: memory for each result in turn, or null to fail. Without it the
  // operation owns the results.
  std::function<void*(const std::vector<int64_t>& dims)> allocate;
  // allreduce: its outputs may lie where all ranks of the node see them. Then `placed` is told
  // where and gets what keeps them there; else `allocate` is asked for what has no output.
  bool shares_results = false;
  std::function<void(std::size_t tensor, std::byte* memory, const std::shared_ptr<void>& hold)>
      placed;
  std::function<void(const Status&)> done;
  // Not empty: this rank's caller was refused, for this reason. The request has its place in the
  // order, and no data: all ranks that submitted it hear the reason.
  std::string refusal;

  uint64_t bytes() const;                      // of this rank's inputs
  std::vector<uint64_t> result_bytes() const;  // of each result that has its input's shape
  // "conv1/kernel, conv1/bias and 4 more"; "" when the tensors have no labels but the name.
  std::string labels() const;
};

// Says what is wrong with this rank's request before it is accepted: dtype, op, root, dimensions,
// sizes, splits.
Status check(const Request& request, int rank, int ranks);

struct Recipe;

// Shared by the caller's handle and the engine: whoever lets go last frees it.
class Operation {
 public:
  explicit Operation(Request request);

  // Called once, by the holder of the baton or by whom it has handed this over to. The caller's
  // memory is free from here on.
  void complete(Status status);
  bool done() const { return done_.load(std::memory_order_acquire) == kDone; }
  // Sleeps until done, until `timeout` is over, or until a nudge() that came after `ticket` was
  // taken; done() tells which.
  uint32_t ticket() const { return done_.load(std::memory_order_seq_cst); }
  void wait(uint32_t ticket, Nanoseconds timeout);
  void nudge();
  const Status& status() const { return status_; }  // once done
  // A prepared operation runs again: done() is false until its next end.
  void rearm();

  Request request;
  std::string descriptor;  // what all ranks must agree on, encoded
  struct Result {
    std::vector<int64_t> dims;
    uint64_t bytes = 0;
    // Without `allocate`; not filled first, since that would take as long as the operation. Shared
    // with the caller of a prepared operation, whose next run may need another size.
    std::shared_ptr<std::byte[]> memory;
  };
  // Where KindRow::makes_result: one for each tensor, and of an alltoall the rows from each rank.
  std::vector<Result> results;
  Nanoseconds taken_at = 0;  // by the engine
  uint64_t sequence = 0;     // of its decision
  int64_t next_number = 0;   // join: that the next unnamed operation of this rank would have
  // It comes again and again: its request is checked once, and its results stay where they are as
  // long as their dims do. `has_moved_results`: some do not lie where the last caller who asked saw
  // them.
  bool is_prepared = false;
  bool has_moved_results = false;
  bool has_said_names = false;  // it was announced, with names where these are new
  bool has_ended = false;       // for the engine, which completes it only once
  // The thread that has the engine is the caller's, and waits for the end of this one.
  bool is_driven_by_caller = false;
  std::shared_ptr<void> results_hold;  // of results that the node shares
  bool stands_in = false;              // for one that this rank's caller never submits
  // The further operations of a group of several dtypes. They begin once this one, the first, has
  // ended well, and end with its error otherwise: so ranks agree about the group before they
  // differ.
  std::vector<std::shared_ptr<Operation>> behind;
  bool awaits_first = false;  // it is one of those, and the first one has not ended
  Result zeros;               // what it gives then
  // Plan mode's: what it was compared with, and was about.
  uint32_t planned_era = 0;
  const void* planned_as = nullptr;
  // The planner's: what was done the last time, and when it had last looked around by then.
  std::shared_ptr<const Recipe> recipe;
  uint64_t recipe_look = 0;

  std::string label() const;  // "allreduce 'bucket_0' (conv1/kernel, conv1/bias)"

 private:
  Status status_;
  static constexpr uint32_t kDone = 1;
  std::atomic<uint32_t> done_{0};  // kDone, or an even number that changes with each nudge
  std::atomic<uint32_t> waiters_{0};
};

using OperationRef = std::shared_ptr<Operation>;

// What must be equal on all ranks, as bytes: kind, dtype, op, root, scales, name, shapes (without
// the first dimension where it may differ), manifest, dtypes of the group.
std::string encode_descriptor(const Request& request);
std::string_view descriptor_name(std::string_view descriptor);
// A tensor behind the first ones of a descriptor, which its description shows, too.
struct ShownTensor {
  std::size_t position = 0;
  std::string name;  // "": unknown
};
// "allreduce of float32 (3, 4), average"
std::string describe_descriptor(std::string_view descriptor,
                                const std::vector<ShownTensor>& shown = {});
std::size_t tensors_of(std::string_view descriptor);
// The first tensor whose shape differs, or that one of them does not have; nothing without such a
// one.
std::optional<std::size_t> first_difference(std::string_view descriptor, std::string_view other);
// "2 gradients (2 dense of 24 bytes ...), average"; "" when it has no manifest.
std::string describe_manifest(std::string_view descriptor);
// The parts of a descriptor that decide which operations may share a batch.
struct Descriptor {
  Kind kind = Kind::barrier;
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string name;
  std::vector<std::vector<int64_t>> shapes;
  std::string manifest;
  std::string group;
  bool shares_results = false;
  std::string refusal;

  uint64_t bytes() const;
};
bool decode_descriptor(std::string_view bytes, Descriptor& descriptor);
// Whether it is that of a refused request, which never runs.
bool is_refusal(std::string_view descriptor);
// "refused its allreduce: ..."
std::string describe_refusal(std::string_view descriptor);

}  // namespace rdmacoll
