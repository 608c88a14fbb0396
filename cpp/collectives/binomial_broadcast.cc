#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/between_nodes.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"

namespace rdmacoll {

// Broadcast of the whole segment along a binomial tree from `root`; segments follow each other.
Schedule binomial_broadcast(const Shape& shape) {
  const int ranks = shape.ranks;
  const int position = (shape.rank - shape.root + ranks) % ranks;  // 0 is the root
  const auto rank_at = [&](int at) { return (at + shape.root) % ranks; };

  Builder program(ranks, shape.rank, 1);
  int step = 1;  // the lowest set bit of `position`; at the root a power of two above all positions
  while (step < ranks && (position & step) == 0) step *= 2;
  if (position == 0) {
    program.copy(program.output(0), program.input(0));
  } else {
    program.receive(rank_at(position - step), program.output(0));
  }
  for (step /= 2; step > 0; step /= 2) {  // the largest subtree first: it has the longest way
    if (position + step < ranks) program.send(rank_at(position + step), program.output(0));
  }
  return program.finish();
}

namespace {

double binomial_broadcast_in_node(const InNode& node) {
  const double bytes = node.segment();
  const int depth = node.depth(), children = node.doublings();
  const double root = node.copy(bytes) + node.pack(bytes) + node.messages(children);
  const double reads = node.messages(1) + node.read(bytes);
  const double inner = reads + node.pack(bytes) + node.messages(std::max(0, children - 1));
  const double served = node.serve(bytes, children);
  const double passage = root + std::max(0, depth - 1) * (reads + node.pack(bytes)) + reads;
  return node.time(passage, std::max({root, inner, served}), (depth + 1) * node.round());
}

// If p is not a power of two, the first messages go to smaller subtrees, and the longest way begins
// later.
double binomial_broadcast_between(const BetweenNodes& nodes) {
  const double bytes = nodes.segment();
  const int depth = nodes.depth(), children = nodes.doublings();
  const double begin = nodes.segments_at_once() * nodes.copy(bytes) + nodes.pin(bytes);
  const double late = (children - depth) * (nodes.port(bytes) + nodes.messages(1));
  const double passage = begin + late + depth * nodes.message(bytes) + nodes.pin(bytes);
  const double pace = std::max(children * nodes.port(bytes), nodes.copy(bytes) + nodes.pin(bytes));
  return passage + (nodes.segments() - 1) * pace;
}

std::string_view prefers_binomial_broadcast(const Tuning&, const Facts&) {
  return "the fewest rounds, and neighbours of a node get it from each other";
}

}  // namespace

extern constinit const AlgorithmRow binomial_broadcast_row{
    .algorithm = Algorithm{4},
    .name = "binomial_broadcast",
    .make = binomial_broadcast,
    .result = AlgorithmRow::Result::root_value,
    .cost_in_node = binomial_broadcast_in_node,
    .cost_between_nodes = binomial_broadcast_between,
    .preferred = prefers_binomial_broadcast,
    .segments = Segments::tree};

}  // namespace rdmacoll
