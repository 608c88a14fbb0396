// A decision with the keys by which this rank finds its operations. Some of them may not be
// submitted yet.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "agreement/complete_decision.h"
#include "agreement/messages.h"
#include "agreement/readiness.h"
#include "base/set_world.h"
#include "operation/cut.h"
#include "operation/operation.h"

namespace rdmacoll {

struct KeyedDecision {
  Decision decision;  // its `rows` are not used
  std::vector<UnitKey> keys;
  // The row counts of the decision, shared by operations and recipes. Null if there are none. A
  // plan reuses one table.
  RowsRef rows = nullptr;
  bool is_planned = false;
  std::vector<int64_t> own_rows = {};  // planned: the row counts expected of this rank (own_rows())

  // `operations`: those of the keys, in their order.
  CompleteDecision with(std::vector<OperationRef> operations) const {
    return {decision.sequence,     decision.movement, rows, decision.most_rows, is_planned,
            std::move(operations), decision.is_timed};
  }
};

// Whether the operation has the row counts that the decision expects of this rank. True for kinds
// without row counts, and for decisions of the log.
inline bool has_own_rows(const KeyedDecision& keyed, const Operation& operation,
                         const SetWorld& world) {
  return keyed.own_rows.empty() ||
         are_own_rows(keyed.own_rows, operation.request, world.rank(), world.size());
}

}  // namespace rdmacoll
