// Which operations a rank may run for nothing first.
#pragma once

#include <algorithm>

#include "operation/kind.h"
#include "operation/operation.h"

namespace rdmacoll {

// Whether an operation of this rank can run again after it has begun. It must not write over its
// inputs, nor hand out memory that ranks share.
inline bool can_run_again(const Operation& operation, SetRank rank) {
  const Request& request = operation.request;
  if (request.shares_results) return false;
  const KindRow& kind = row_of(request.kind);
  if (!kind.reduces || kind.makes_result) return true;
  if (kind.has_root && request.root != rank) return true;  // it writes no result here
  return std::ranges::none_of(request.tensors, [](const TensorRef& tensor) {
    return tensor.elements() > 0 && tensor.output != nullptr && tensor.output == tensor.input;
  });
}

}  // namespace rdmacoll
