// Whether the description of an operation, which came from another rank, can be true.
#pragma once

#include <cstdint>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

// Whether check() lets such an operation pass on some rank of the set, and it has at most
// `bytes_max`. A refusal is not sound: it never runs.
bool is_sound(const Descriptor& descriptor, int ranks, uint64_t bytes_max);

// How many bytes the rows are that a rank gives, which is_complete(). `bytes_max` + 1 stands for
// more bytes than `bytes_max`, or more rows.
uint64_t bytes_of_own_rows(const Descriptor& descriptor, const std::vector<int64_t>& own, int ranks,
                           uint64_t bytes_max);

}  // namespace rdmacoll
