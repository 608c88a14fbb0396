#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

Schedule binomial_reduce(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;
  // The rank that holds the sum of the block of ranks that starts at `begin`.
  const auto holder = [&](int begin, int block) {
    const int end = std::min(begin + block, ranks);
    return begin <= shape.root && shape.root < end ? shape.root : begin;
  };

  Builder program(shape, 1, Space::scratch);
  Slice mine = program.contribution(0);  // the sum over this rank's block
  for (int block = 1; block < ranks; block *= 2) {
    const int begin = rank / block * block;
    const bool lower = begin / block % 2 == 0;
    const int sibling = lower ? begin + block : begin - block;
    if (sibling >= ranks) continue;  // no sibling: this block waits for a larger one
    const int both = holder(std::min(begin, sibling), 2 * block);
    if (both != rank) {
      program.send(both, mine);
      return program.finish();
    }
    const Slice theirs = program.addend(0, 1, std::min(block, ranks - sibling) > 1);
    program.receive(holder(sibling, block), theirs);
    const bool last = block * 2 >= ranks;
    mine = program.joined(lower ? mine : theirs, lower ? theirs : mine, last);
  }
  if (ranks == 1) program.copy(program.output(0), mine, true);
  return program.finish();
}

}  // namespace rdmacoll
