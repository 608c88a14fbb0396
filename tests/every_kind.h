// One operation of every kind, with parts of different sizes, of which some are empty.
#pragma once

#include <cstdint>
#include <vector>

#include "operation/kind.h"
#include "sim/script.h"

namespace rdmacoll {

inline std::vector<SimOperation> every_kind(int ranks, int64_t rows_max, bool is_prescaled) {
  std::vector<SimOperation> operations;
  for (uint8_t number = 0; is_known(static_cast<Kind>(number)); ++number) {
    if (static_cast<Kind>(number) == Kind::join) continue;  // no data, and ends the others
    SimOperation& operation = operations.emplace_back();
    operation.kind = static_cast<Kind>(number);
    const KindRow& kind = row_of(operation.kind);
    operation.name = kind.name;
    operation.root = ranks / 2;
    if (kind.reduces && is_prescaled) operation.prescale = 2.0;
    if (operation.kind == Kind::barrier) continue;
    const std::size_t tensors = kind.takes_groups ? 3 : 1;
    for (std::size_t t = 0; t < tensors; ++t) {
      operation.shapes.push_back({3, static_cast<int64_t>(t) + 1});
      if (!kind.first_may_differ)
        operation.shapes.back().front() = rows_max + ranks * (1 - static_cast<int64_t>(t));
      if (operation.shapes.back().front() < 0) operation.shapes.back().front() = 0;
    }
    if (!kind.first_may_differ) continue;
    const bool is_split = operation.kind == Kind::alltoall || operation.kind == Kind::scatter;
    for (int rank = 0; rank < ranks; ++rank) {
      auto& rows = operation.rows.emplace_back();
      for (std::size_t i = 0; i < (is_split ? ranks : tensors); ++i) {
        rows.push_back((rank * 7 + static_cast<int64_t>(i) * 5) % 4 * rows_max / 3);
      }
    }
  }
  return operations;
}

}  // namespace rdmacoll
