// The order of ranks in a ring. The ranks of a node follow each other, and so do those of a NUMA
// node. Only two ranks of a node thus have a neighbour on another node, wherever ranks were placed.
#pragma once

#include <vector>

#include "collectives/algorithms.h"

namespace rdmacoll {

// The ranks in the order of the ring; ascending if neither nodes nor NUMA nodes are known.
std::vector<int> ring_order(const Shape& shape);

// The ring as this rank sees it.
class Ring {
 public:
  explicit Ring(const Shape& shape);

  int next() const { return back(static_cast<int>(order_.size()) - 1); }
  int previous() const { return back(1); }
  // The rank `places` before this one in the ring, at most twice around.
  int back(int places) const;

 private:
  std::vector<int> order_;
  int place_ = 0;
};

}  // namespace rdmacoll
