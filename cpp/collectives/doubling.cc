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

int size_of_block(int ranks, int block, int rank) {
  return std::min(block, ranks - rank / block * block);
}

}  // namespace rdmacoll
