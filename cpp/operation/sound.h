// Checks of a descriptor that another rank sent.
#pragma once

#include <cstdint>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

// The largest operation of one rank, in bytes. A process has 47 bits of addresses by default, on
// which inputs and results must both find room. Sums over the ranks of any world fit 64 bits.
inline constexpr uint64_t kOperationBytesMax = uint64_t{1} << 46;

// Whether check() could accept such an operation on a rank of the set, with at most `bytes_max`
// bytes. A refusal is not sound, since it never runs.
bool is_sound(const Descriptor& descriptor, int ranks, uint64_t bytes_max);

// The bytes of the rows that a rank sends. `own` must satisfy is_complete(). Returns `bytes_max` +
// 1 if the bytes, or the number of rows, exceed `bytes_max`.
uint64_t bytes_of_own_rows(const Descriptor& descriptor, const std::vector<int64_t>& own, int ranks,
                           uint64_t bytes_max);

}  // namespace rdmacoll
