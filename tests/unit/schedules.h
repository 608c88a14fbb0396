// Schedules of all ranks, as an algorithm writes them.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/lower.h"
#include "collectives/verify.h"

namespace rdmacoll {

inline std::vector<Schedule> schedules_of(const AlgorithmRow& row, Shape shape) {
  std::vector<Schedule> schedules;
  for (shape.rank = 0; shape.rank < shape.members(); ++shape.rank) {
    schedules.push_back(row.make(shape));
  }
  return schedules;
}

inline std::string verified(const AlgorithmRow& row, const std::vector<Schedule>& schedules,
                            const Shape& shape) {
  return verify(schedules, row.result, shape.root, row.is_canonical(shape));
}

inline CallerMemory host_memory(bool is_visible) {
  return is_visible ? CallerMemory::visible : CallerMemory::hidden;
}

// The nodes of up to 24 ranks on up to 6 nodes. With an even seed the ranks of a node follow each
// other.
inline std::vector<int> random_nodes(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> nodes(1 + random() % 24);
  const unsigned count = 1 + random() % 6;
  for (int& node : nodes) node = static_cast<int>(random() % count);
  if (seed % 2 == 0) std::sort(nodes.begin(), nodes.end());
  return nodes;
}

// Ranks that share a node when they are neighbours.
inline std::vector<int> nodes_of(int ranks, int per_node) {
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / per_node);
  return nodes;
}

}  // namespace rdmacoll
