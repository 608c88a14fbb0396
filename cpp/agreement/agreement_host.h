// The functions of the engine that the agreement of a process set calls. The set's servers have the
// ranks behind those of its members.
#pragma once

#include <cstdint>
#include <string>

#include "agreement/messages.h"
#include "base/clock.h"
#include "base/rank.h"
#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

class AgreementHost {
 public:
  // The time now. Situation::turned_at is older by all that this turn has computed.
  virtual Nanoseconds time() const = 0;
  virtual void post(SetRank to, const Message& message) = 0;
  // Ends the world. `what`: the end of the sentence "it sent ...".
  virtual void broken_protocol(SetRank sender, const std::string& what) = 0;
  // A placeholder begins, which no caller has submitted. Gives it memory for its zeros. Returns
  // false if there is none.
  virtual bool begin(const OperationRef& placeholder) = 0;
  // An operation ends that did not run, or whose end had to wait for other ranks.
  virtual void end(const OperationRef& operation, const Status& status) = 0;
  // All ranks have joined, so this rank's join ends.
  virtual void end_join(const OperationRef& join, const AllJoinedMessage& message) = 0;
  // From the decision of this sequence on, all operations that this rank has begun can run again.
  virtual uint64_t kept() const = 0;
  // Root: the memory for segments makes them much shorter than the best length.
  virtual void segments_are_short(uint64_t segment_bytes) = 0;

 protected:
  ~AgreementHost() = default;
};

}  // namespace rdmacoll
