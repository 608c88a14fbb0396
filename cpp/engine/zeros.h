// The zeros with which a rank that has joined takes part in sums. Their memory is reused, since
// such a rank needs it for every batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

class Zeros {
 public:
  // `spare_max`: the number of pieces that are kept.
  explicit Zeros(std::size_t spare_max) : spare_max_(spare_max) {}

  // `memory` of the result is null if the allocation failed.
  Operation::Result take(uint64_t bytes);
  void give_back(Operation::Result zeros);
  void clear() { spare_.clear(); }

 private:
  const std::size_t spare_max_;
  std::vector<Operation::Result> spare_;
};

}  // namespace rdmacoll
