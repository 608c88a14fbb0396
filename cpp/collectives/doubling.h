// Blocks of ranks that double, for any number of ranks.
#pragma once

#include "collectives/algorithms.h"

namespace rdmacoll {

// The rank that sends the other half's sum to `rank` when blocks of `block` ranks are joined, or
// -1.
int doubling_partner(int ranks, int block, int rank);

// The number of ranks in the block of `rank`, of which the last one may be incomplete.
int size_of_block(int ranks, int block, int rank);

}  // namespace rdmacoll
