#include "collectives/ring_order.h"

#include <algorithm>
#include <numeric>

namespace rdmacoll {

std::vector<int> ring_order(const Shape& shape) {
  std::vector<int> order(static_cast<std::size_t>(shape.ranks));
  std::iota(order.begin(), order.end(), 0);
  const auto is_before = [&](int a, int b) {
    if (shape.node_of(a) != shape.node_of(b)) return shape.node_of(a) < shape.node_of(b);
    return shape.numa_node_of(a) < shape.numa_node_of(b);
  };
  std::stable_sort(order.begin(), order.end(), is_before);
  return order;
}

Ring::Ring(const Shape& shape) : order_(ring_order(shape)) {
  const auto me = std::find(order_.begin(), order_.end(), shape.rank);
  place_ = static_cast<int>(me - order_.begin());
}

int Ring::back(int places) const {
  const int ranks = static_cast<int>(order_.size());
  return order_[static_cast<std::size_t>((place_ + 2 * ranks - places) % ranks)];
}

}  // namespace rdmacoll
