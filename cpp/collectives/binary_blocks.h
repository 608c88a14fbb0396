// The allreduce of a group of ranks by halving and doubling, as a part of a schedule. It is all of
// halving and doubling, and the stage between nodes of sums by nodes.
#pragma once

#include <span>

#include "collectives/builder.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// The number of parts must be a multiple of this, so that a group of `members` ranks can share its
// work.
int binary_block_parts(int members);

// Appends the steps of group[index] to `program`. `mine` is its contribution; at the end the sum
// over the group lies in the output there. Every member calls this with the same parts and the same
// width. The group has two ranks or more.
//
// The group is cut in blocks of powers of two, the largest first. Within a block the vector is
// halved while the distance between partners doubles. A sum then always covers an aligned block of
// neighbouring ranks, which is a node of the canonical tree. A smaller block gives its sum to the
// next larger one, as the tree does at its right edge. The way back is the same in reverse.
void allreduce_by_blocks(Builder& program, std::span<const int> group, int index, Slice mine);

// The traffic of such a group.
struct BlockTraffic {
  std::vector<int> members;
  double bytes = 0;
  bool are_sums = false;  // the members contribute sums
};
void allreduce_by_blocks(Traffic& traffic, const BlockTraffic& group);

}  // namespace rdmacoll
