// The allreduce of a group of ranks by halving and doubling, as a part of a schedule: the whole of
// halving_doubling, and what two_level does between nodes.
#pragma once

#include <span>

#include "collectives/builder.h"

namespace rdmacoll {

// A group of this many ranks shares its work when the parts are a multiple of this.
int binary_block_parts(int members);

// `mine` is the contribution of group[index]; in the end the sum over the group lies in the output
// there. Every member calls it with the same parts, wide or not. Two ranks or more.
//
// The group is cut in blocks of powers of two, the largest first. Within a block the vector is
// halved while the distance between partners doubles: a sum then always covers neighbours, an
// aligned block of ranks, which is a node of the canonical tree. A smaller block gives its sum to
// the next larger one, as the tree does at its right edge. The way back is the same in reverse.
void allreduce_by_blocks(Builder& program, std::span<const int> group, int index, Slice mine);

}  // namespace rdmacoll
