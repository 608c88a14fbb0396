#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Reduce to `root`. ceil(log2 p) rounds of the whole segment along the canonical tree. The root
// takes the place of the first rank in each block that it belongs to.
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

namespace {

double binomial_reduce_in_node(const InNode& node) {
  const double bytes = node.segment();
  const int children = node.doublings();
  const double leaf = node.pack(bytes) + node.messages(1, bytes);
  const double partial = node.partial(bytes);
  double root = children > 0 ? node.sum(bytes, 1) : 0;
  for (int level = 1; level < children; ++level) root += node.sum_to_pool(partial);
  root += node.messages(children, partial);
  // The child with most work: it has a level less than the root.
  const double inner = children > 1 ? root - node.sum_to_pool(partial) : leaf;
  return node.time(leaf + root + node.messages(std::max(0, children - 1), partial),
                   node.busiest(root, inner), (node.depth() + 1) * node.round());
}

// Rank 0 is the root.
void binomial_reduce_traffic(Traffic& traffic) {
  const int ranks = traffic.ranks();
  const double bytes = traffic.segment();
  for (int block = 1; block < ranks; block *= 2) {
    for (int both = 0; both + block < ranks; both += 2 * block) {
      const int from = both + block;
      const bool is_sum = std::min(block, ranks - from) > 1;
      if (!is_sum) traffic.pack(from, both, bytes);
      traffic.send(from, both, traffic.sum_bytes(bytes, is_sum));
    }
    traffic.deliver();
    for (int both = 0; both + block < ranks; both += 2 * block) {
      traffic.sum(both, traffic.sum_bytes(bytes, 2 * block < ranks), 1);
    }
  }
}

}  // namespace

extern constinit const AlgorithmRow binomial_reduce_row{.algorithm = Algorithm{13},
                                                        .name = "binomial_reduce",
                                                        .make = binomial_reduce,
                                                        .result = AlgorithmRow::Result::root_sum,
                                                        .cost_in_node = binomial_reduce_in_node,
                                                        .traffic = binomial_reduce_traffic,
                                                        .segments = Segments::tree,
                                                        .memory = memory_of_rounds};

}  // namespace rdmacoll
