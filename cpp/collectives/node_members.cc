#include "collectives/node_members.h"

#include <map>

namespace rdmacoll {

std::vector<std::vector<int>> node_members(const Shape& shape) {
  std::map<int, std::size_t> found;
  std::vector<std::vector<int>> members;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto [entry, is_new] = found.emplace(shape.node_of(rank), members.size());
    if (is_new) members.emplace_back();
    members[entry->second].push_back(rank);
  }
  return members;
}

}  // namespace rdmacoll
