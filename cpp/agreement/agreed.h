// A decision, with the keys of its operations on this rank.
#pragma once

#include <cstdint>
#include <vector>

#include "agreement/messages.h"
#include "agreement/readiness.h"
#include "base/set_world.h"
#include "operation/cut.h"
#include "operation/operation.h"

namespace rdmacoll {

struct Agreed {
  Decision decision;  // its `rows` are not used
  std::vector<UnitKey> keys;
  // The row counts of the decision, shared by operations and recipes. Null if there are none. A
  // plan reuses one table.
  RowsRef rows = nullptr;
  bool is_planned = false;
  std::vector<int64_t> own_rows = {};  // planned: the row counts expected of this rank (own_rows())
};

// Whether the operation has the row counts that the decision expects of this rank. True for kinds
// without row counts, and for decisions of the log.
inline bool has_own_rows(const Agreed& agreed, const Operation& operation, const SetWorld& world) {
  return agreed.own_rows.empty() ||
         are_own_rows(agreed.own_rows, operation.request, world.rank(), world.size());
}

}  // namespace rdmacoll
