// Operations of plain calls that have succeeded. A call with equal arguments, at equal addresses,
// runs its operation again. The operation knows its descriptor, plan and recipe then. Nothing keeps
// the caller's memory, whose address is compared and not read. Threads never wait for each other
// here: one that finds another one at work goes without an operation, and keeps none.
//
// This helps calls up to 64 KiB. To see it, let can_repeat() return false
// (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/rdmacoll_c.h"
#include "operation/operation.h"

namespace rdmacoll {

class RepeatedCalls {
 public:
  // Whether operations of such requests can run again: at most one tensor, and no callbacks. If an
  // operation owns its results, its caller must be done with them before it is kept.
  static bool can_repeat(const rc_request& request);

  // Takes the operation of an equal request, ready to run. Returns null if there is none. An
  // operation on a stream needs a new order.
  OperationRef take(const rc_request& request);
  // Keeps an operation that has succeeded, unless it owns large results, or a caller holds them. It
  // replaces another one if necessary. root and stream: those of its request.
  void keep(int32_t root, uint64_t stream, OperationRef operation);

 private:
  static constexpr std::size_t kSlots = 64;
  struct Slot {
    OperationRef operation;
    // The root and the stream of the caller's request. The operation itself has the root's rank in
    // its set, and an order of its own.
    int32_t root = 0;
    uint64_t stream = 0;
  };
  // Larger results would take memory for calls that may never come again.
  static constexpr uint64_t kResultBytesMax = 64 << 10;
  Slot& slot_of(std::string_view name, Kind kind, int32_t root, const void* output);

  std::atomic_flag is_in_use_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace rdmacoll
