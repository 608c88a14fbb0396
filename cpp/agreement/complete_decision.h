// A decision with all of its operations, so that it can run. The planner makes a batch of it.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/algorithms.h"
#include "operation/cut.h"
#include "operation/operation.h"

namespace rdmacoll {

struct CompleteDecision {
  uint64_t sequence = 0;
  Movement movement;
  RowsRef rows;  // null if the decision has no rows
  int64_t most_rows = 0;
  bool is_planned = false;  // decided by a plan, without a readiness check
  std::vector<OperationRef> operations;
  bool is_trial = false;  // all ranks time it, to compare ways
};

}  // namespace rdmacoll
