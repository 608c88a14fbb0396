#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

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
  const double root = node.copy(bytes) + node.pack(bytes) + node.messages(children, bytes);
  const double reads = node.messages(1, bytes) + node.read(bytes);
  const double passes = depth > 1 ? node.pack(bytes) + node.messages(children - 1, bytes) : 0;
  const double inner = reads + passes;
  const double served = node.serve(bytes, children);
  const double passage =
      node.alone(root) + std::max(0, depth - 1) * (reads + node.pack(bytes)) + reads;
  return node.time_of_broadcast(passage, root, std::max(inner, served), (depth + 1) * node.round());
}

// Rank 0 is the root.
void binomial_broadcast_traffic(Traffic& traffic) {
  const int ranks = traffic.ranks();
  const double bytes = traffic.segment();
  const auto first_step = static_cast<int>(std::bit_ceil(unsigned(ranks))) / 2;
  std::vector<bool> is_packed(static_cast<std::size_t>(ranks)), is_pinned = is_packed;
  const auto each_of_step = [&](int step, auto visit) {
    for (int from = 0; from + step < ranks; from += 2 * step) visit(from, from + step);
  };
  for (int step = first_step; step > 0; step /= 2) {
    each_of_step(step, [&](int from, int to) {
      if (!traffic.are_near(from, to)) is_pinned[from] = is_pinned[to] = true;
    });
  }
  traffic.copy(0, bytes);
  traffic.unpack(0, bytes, is_pinned[0]);
  for (int step = first_step; step > 0; step /= 2) {
    each_of_step(step, [&](int from, int to) {
      if (traffic.are_near(from, to) && !is_packed[from]) {
        traffic.pack_result(from, to, bytes, is_pinned[from]);
        is_packed[from] = true;
      }
      traffic.move(from, to, bytes, is_pinned[to]);
    });
    traffic.deliver();
  }
}

}  // namespace

extern constinit const AlgorithmRow binomial_broadcast_row{
    .algorithm = Algorithm{4},
    .name = "binomial_broadcast",
    .make = binomial_broadcast,
    .result = AlgorithmRow::Result::root_value,
    .cost_in_node = binomial_broadcast_in_node,
    .traffic = binomial_broadcast_traffic,
    .segments = Segments::tree};

}  // namespace rdmacoll
