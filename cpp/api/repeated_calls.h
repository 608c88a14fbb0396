// Operations of plain calls that have succeeded. A call with equal arguments, at equal addresses,
// runs its operation again. The operation knows its descriptor, plan and recipe then. Nothing keeps
// the caller's memory, whose address is compared and not read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "api/rdmacoll_c.h"
#include "operation/operation.h"

namespace rdmacoll {

class RepeatedCalls {
 public:
  // Whether operations of such requests can run again: at most one tensor, and no results or
  // callbacks of their own.
  static bool can_repeat(const rc_request& request);

  // Takes the operation of an equal request, ready to run. Returns null if there is none. An
  // operation on a stream needs a new order.
  OperationRef take(const rc_request& request);
  // Keeps the operation of this request, which has succeeded. It replaces another one if necessary.
  void keep(const rc_request& request, OperationRef operation);

 private:
  static constexpr std::size_t kSlots = 64;
  struct Slot {
    OperationRef operation;
    // The root and the stream of the caller's request. The operation itself has the root's rank in
    // its set, and an order of its own.
    int32_t root = 0;
    uint64_t stream = 0;
  };
  Slot& slot_of(const rc_request& request);

  std::mutex mutex_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace rdmacoll
