#include "collectives/doubling.h"

#include <algorithm>

namespace rdmacoll {

// The lower block is complete. Its member i takes the upper sum from member i mod (upper size).
int doubling_partner(int ranks, int block, int rank) {
  const int index = rank % block;
  const int begin = rank - index;
  if (begin / block % 2 != 0) return begin - block + index;
  const int siblings = std::min(block, ranks - (begin + block));
  return siblings <= 0 ? -1 : begin + block + index % siblings;
}

int doubling_rounds_across(const Shape& shape) {
  int rounds = 0;
  for (int block = 1; block < shape.ranks; block *= 2) {
    bool crosses = false;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const int partner = doubling_partner(shape.ranks, block, rank);
      crosses |= partner >= 0 && shape.node_of(rank) != shape.node_of(partner);
    }
    rounds += crosses ? 1 : 0;
  }
  return rounds;
}

}  // namespace rdmacoll
