// Operations that wait for their callers' streams of GPU work. Peers hear of an operation only once
// its stream has reached it, so nobody reads memory that a GPU has yet to write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "operation/operation.h"

namespace rdmacoll {

class HeldOperations {
 public:
  static constexpr Nanoseconds kPollInterval = 100 * kMicrosecond;
  static constexpr Nanoseconds kFaultInterval = 10 * kMillisecond;

  bool empty() const { return held_.empty(); }
  // Keeps the operation if its stream has not reached it, or if it must not overtake an operation
  // that is held. Unnamed operations of a set keep their order, since they are counted. A join
  // follows all operations of its set. `is_held`: it was kept. An error of the stream is returned,
  // and the operation is kept then.
  Status hold(const OperationRef& operation, bool& is_held);
  // Appends the operations that wait no more to `ready`, in their order. Returns an error of a
  // stream, which no operation survives.
  Status release(std::vector<OperationRef>& ready);
  // Removes all operations of this set, and returns them.
  std::vector<OperationRef> take(uint32_t set);
  std::vector<OperationRef> take_all();
  std::size_t count(uint32_t set) const;  // without refused ones, for which no caller waits
  std::string titles() const;             // the labels of all operations

  // Call before the engine sleeps. Requests a wake-up from all streams. A stream that offers none
  // is polled instead. Returns false if an operation need not wait any more, or its stream has
  // failed.
  bool arm();
  // How long the engine may sleep then. A GPU that fails never sends its wake-up.
  Nanoseconds wait_max() const { return is_polled_ ? kPollInterval : kFaultInterval; }

 private:
  std::vector<OperationRef> held_;  // in the order of submission
  bool is_polled_ = false;
};

}  // namespace rdmacoll
