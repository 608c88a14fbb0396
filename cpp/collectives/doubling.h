// Blocks of ranks that double, for any number of ranks.
#pragma once

#include "collectives/algorithms.h"

namespace rdmacoll {

// The rank that sends the other half's sum to `rank` when blocks of `block` ranks are joined, or
// -1.
int doubling_partner(int ranks, int block, int rank);

// The number of rounds with a message between nodes.
int doubling_rounds_across(const Shape& shape);

}  // namespace rdmacoll
