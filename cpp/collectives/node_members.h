// The ranks of each node.
#pragma once

#include <vector>

#include "collectives/algorithms.h"

namespace rdmacoll {

// The ranks of each node in ascending order. Nodes are in the order of their first rank.
std::vector<std::vector<int>> node_members(const Shape& shape);

}  // namespace rdmacoll
