// An operation that one caller runs many times.
#pragma once

#include <cstdint>
#include <vector>

#include "api/session.h"
#include "engine/gil_release.h"
#include "operation/operation.h"

namespace rdmacoll {

class Prepared {
 public:
  // The request must be valid. `stream`: as in rc_request, for each run.
  // `error`: receives the errors of runs.
  Prepared(Session& session, OperationRef operation, uint64_t stream, Nanoseconds timeout,
           char** error);
  ~Prepared();

  // Like prepared.run() in rdmacoll_c.h. `hooks` are called around long waits.
  int run(const GilReleaseHooks& hooks);
  const Operation& operation() const { return *operation_; }
  const Operation::Result& result(std::size_t index) const { return operation_->results[index]; }

 private:
  Session& session_;
  const OperationRef operation_;
  const std::vector<Piece> pinned_;
  const uint64_t stream_;
  const Nanoseconds timeout_;
  char** const error_;
  bool is_running_ = false;  // started, and its end was not returned yet
};

}  // namespace rdmacoll
