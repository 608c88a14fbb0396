// The request of a placeholder: this rank takes part in an operation that its caller never submits.
#pragma once

#include <cstdint>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

// A request that matches the descriptor, without labels and without memory. `own_rows`: the row
// counts that the other ranks expect from this one, as in cut.h.
Request request_like(const Descriptor& descriptor, const std::vector<int64_t>& own_rows,
                     SetRank rank, int ranks);
// Lays all tensors into `memory`, one after the other. Inputs and the outputs of equal shape share
// it.
void lay_in(Request& request, std::byte* memory);

}  // namespace rdmacoll
