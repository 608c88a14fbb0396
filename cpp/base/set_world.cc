#include "base/set_world.h"

namespace rdmacoll {
namespace {

std::vector<SetRank> ranks_of(const std::vector<int>& numbers) {
  return {numbers.begin(), numbers.end()};
}

}  // namespace

std::vector<SetRank> SetWorld::ranks() const {
  std::vector<SetRank> ranks;
  for (int rank = 0; rank < size(); ++rank) ranks.emplace_back(rank);
  return ranks;
}

SetRank tree_parent(SetRank rank) { return SetRank(tree_parent(rank.value())); }

std::vector<SetRank> tree_children(SetRank rank, int size) {
  return ranks_of(tree_children(rank.value(), size));
}

std::vector<SetRank> tree_subtree(SetRank rank, int size) {
  return ranks_of(tree_subtree(rank.value(), size));
}

}  // namespace rdmacoll
