// The kinds of collectives and their properties.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// The values are part of the wire format and of the C ABI: append only.
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
  join = 9,  // not a collective: this rank has no data left
};

struct KindRow {
  std::string_view name;
  bool reduces;           // the operator and the scales are used
  bool has_root;          // the root is used
  bool first_may_differ;  // the first dimension may differ between ranks
  bool makes_result;      // result memory is allocated once its size is known
  bool takes_groups;      // accepts several tensors
  // the result of its algorithms; unused by a barrier, which moves no data
  AlgorithmRow::Result result;
};
// Returns false for a kind that this version does not know.
bool is_known(Kind kind);
const KindRow& row_of(Kind kind);
inline std::string_view name_of(Kind kind) { return row_of(kind).name; }
// Whether the kind reduces, with sums as in has_wide_sums() of base/dtype.h.
inline bool has_wide_sums(Kind kind, Dtype dtype, ReduceOp op) {
  return row_of(kind).reduces && has_wide_sums(dtype, op);
}

}  // namespace rdmacoll
