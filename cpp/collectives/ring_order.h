// Who is whose neighbour in a ring. The ranks of a node follow each other, and among them those of
// a NUMA node: so only two of a node's ranks have a neighbour elsewhere, however ranks were placed.
#pragma once

#include <vector>

#include "collectives/algorithms.h"

namespace rdmacoll {

// The ranks in that order; ascending where nothing else is known.
std::vector<int> ring_order(const Shape& shape);

// The ring as this rank sees it.
class Ring {
 public:
  explicit Ring(const Shape& shape);

  int next() const { return back(static_cast<int>(order_.size()) - 1); }
  int previous() const { return back(1); }
  // So many places before this rank, at most twice around.
  int back(int places) const;

 private:
  std::vector<int> order_;
  int place_ = 0;
};

}  // namespace rdmacoll
