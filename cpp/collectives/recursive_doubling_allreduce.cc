#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

// The lower block is complete. Its member i takes the upper sum from member i mod (upper size).
int doubling_partner(int ranks, int block, int rank) {
  const int index = rank % block;
  const int begin = rank - index;
  if (begin / block % 2 != 0) return begin - block + index;
  const int siblings = std::min(block, ranks - (begin + block));
  return siblings <= 0 ? -1 : begin + block + index % siblings;
}

Schedule recursive_doubling_allreduce(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;

  Builder program(shape, 1);
  Slice mine = program.contribution(0);  // the sum over this rank's block
  for (int block = 1; block < ranks; block *= 2) {
    const int begin = rank / block * block;
    const bool lower = begin / block % 2 == 0;
    const int sibling = lower ? begin + block : begin - block;
    const int siblings = std::min(block, ranks - sibling);
    if (siblings <= 0) continue;  // no sibling: this block waits for a larger one
    const int index = rank - begin;

    if (lower) {
      if (index < siblings) program.send(sibling + index, mine);
    } else {
      const int members = std::min(block, ranks - begin);
      for (int i = index; i < block; i += members) program.send(sibling + i, mine);
    }
    const Slice theirs = program.addend(0, 1, std::min(block, ranks - sibling) > 1);
    program.receive(doubling_partner(ranks, block, rank), theirs);

    // Each round writes to a fresh place, since the partners may still be reading the old one.
    const bool last = block * 2 >= ranks;
    mine = program.joined(lower ? mine : theirs, lower ? theirs : mine, last);
  }
  if (ranks == 1) program.copy(program.output(0), mine, true);
  return program.finish();
}

}  // namespace rdmacoll
