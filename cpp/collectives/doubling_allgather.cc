#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

Schedule doubling_allgather(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;

  Builder program(ranks, rank, ranks);
  program.copy(program.output(rank), program.input(rank));
  for (int block = 1; block < ranks; block *= 2) {
    const int begin = rank / block * block;
    const bool lower = begin / block % 2 == 0;
    const int sibling = lower ? begin + block : begin - block;
    const int siblings = std::min(block, ranks - sibling);
    if (siblings <= 0) continue;  // no sibling: this block waits for a larger one
    const int members = std::min(block, ranks - begin);
    const Slice mine = program.output(begin, members);

    // Member i of the smaller block serves members i, i + its size, ... of the other block.
    const int index = rank - begin;
    for (int i = index; i < siblings; i += members) program.send(sibling + i, mine);
    program.receive(sibling + index % siblings, program.output(sibling, siblings));
  }
  return program.finish();
}

}  // namespace rdmacoll
