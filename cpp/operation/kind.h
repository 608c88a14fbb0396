// The kinds of collectives, and what is special about each.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// Values are on the wire and in the C ABI: append only.
enum class Kind : uint8_t {
  allreduce = 0,
  broadcast = 1,
  allgather = 2,
  barrier = 3,
  reducescatter = 4,
  alltoall = 5,
  reduce = 6,
  gather = 7,
  scatter = 8,
  join = 9,  // no collective: this rank has no data left
};

struct KindRow {
  std::string_view name;
  bool reduces;                 // operator and scales count
  bool has_root;                // root counts
  bool first_may_differ;        // the first dimension is each rank's own business
  bool makes_result;            // in memory that is asked for once its size is known
  bool takes_groups;            // several tensors
  AlgorithmRow::Result result;  // of its algorithms; a barrier, which moves nothing, needs none
};
// False: no kind of this version.
bool is_known(Kind kind);
const KindRow& row_of(Kind kind);
inline std::string_view name_of(Kind kind) { return row_of(kind).name; }
// Of a kind that sums: see has_wide_sums() of base/dtype.h.
inline bool has_wide_sums(Kind kind, Dtype dtype, ReduceOp op) {
  return row_of(kind).reduces && has_wide_sums(dtype, op);
}

}  // namespace rdmacoll
