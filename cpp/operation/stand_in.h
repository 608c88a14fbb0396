// What a rank takes part with in an operation that its caller never submits.
#pragma once

#include <cstdint>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

// A request like those of the others, without a name's labels and without
// memory. `own_rows`: as in cut.h, what this rank is expected to say.
Request request_like(const Descriptor& descriptor, const std::vector<int64_t>& own_rows, int rank,
                     int ranks);
// All its tensors, one after the other: what they give, and where results go
// that have the same shape.
void lay_in(Request& request, std::byte* memory);

}  // namespace rdmacoll
