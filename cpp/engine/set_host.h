// The functions of the engine that a process set calls.
#pragma once

#include <cstdint>
#include <string>

#include "agreement/messages.h"
#include "base/clock.h"
#include "base/rank.h"
#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

class SetHost {
 public:
  virtual ~SetHost() = default;
  virtual Nanoseconds time() const = 0;  // now; turns began earlier
  virtual void post(JobRank to, uint32_t set, const Message& message) = 0;
  virtual void misses(JobRank peer) = 0;  // an operation needs a peer that is lost
  virtual void fail_this_rank(const Status& status) = 0;
  virtual void broken_protocol(JobRank sender, const std::string& what) = 0;
  // An operation begins that no caller has submitted.
  virtual void begin(const OperationRef& operation) = 0;
  // The batch of an operation begins.
  virtual void starts(const Operation& operation) = 0;
  // All ranks have joined. Unnamed operations continue with this number.
  virtual void set_next_number(uint32_t set, int64_t number) = 0;
  // Completes the operation.
  virtual void end(const OperationRef& operation, const Status& status) = 0;
};

}  // namespace rdmacoll
