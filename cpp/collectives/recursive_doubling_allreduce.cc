#include <algorithm>
#include <bit>
#include <limits>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/doubling.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Allreduce. ceil(log2 p) rounds of the whole segment, for any p, in canonical order. Blocks of
// ranks double, and an incomplete last block serves several partners instead of folding in first.
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
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

namespace {

// The sum may overwrite the data that peers read, so they cannot read it in place. If p is not a
// power of two, a rank of the last, smaller block serves several partners.
double recursive_doubling_in_node(const InNode& node) {
  if (node.is_in_place()) return std::numeric_limits<double>::infinity();
  const double bytes = node.segment();
  const int rounds = node.doublings();
  double work = node.pack(bytes);
  if (rounds > 0) work += node.messages(2, bytes) + node.sum(bytes, 1);
  for (int round = 1; round < rounds; ++round) {
    work += node.messages(2, node.partial(bytes)) + node.sum_to_pool(node.partial(bytes));
  }
  const int lower = 1 << std::max(0, rounds - 1);
  const int served = (lower - 1) / std::max(1, node.ranks() - lower);
  return node.time(work + node.messages(served, bytes), (rounds + 1) * node.round());
}

// Each message of a node costs its kernel processor time, which the model gives to the ranks alone.
// AMD EPYC, 2026-11-28: docs/measurements/2026-11-28-small-sums-between-hosts.md.
std::string_view correction_of_recursive_doubling(const Tuning& tuning, const Facts& facts) {
  const bool is_by_rank = !facts.one_node && facts.spread.shares_nodes;
  if (!is_by_rank || tuning.links.via_nic || !facts.spread.is_canonical_by_node) return "";
  return "measured: one message of each node takes less time than one of each rank";
}

void recursive_doubling_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(std::has_single_bit(static_cast<unsigned>(traffic.ranks())));
  const int ranks = traffic.ranks();
  const double bytes = traffic.segment();
  for (int block = 1; block < ranks; block *= 2) {
    for (int rank = 0; rank < ranks; ++rank) {
      const int from = doubling_partner(ranks, block, rank);
      if (from < 0) continue;
      if (block == 1) traffic.pack(from, rank, bytes);
      traffic.send(from, rank, traffic.sum_bytes(bytes, size_of_block(ranks, block, from) > 1));
    }
    traffic.deliver();
    const bool is_last = 2 * block >= ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      if (doubling_partner(ranks, block, rank) < 0) continue;
      traffic.sum(rank, traffic.sum_bytes(bytes, !is_last), 1);
    }
  }
}

}  // namespace

extern constinit const AlgorithmRow recursive_doubling_row{
    .algorithm = Algorithm{3},
    .name = "recursive_doubling",
    .make = recursive_doubling_allreduce,
    .result = AlgorithmRow::Result::sum,
    .cost_in_node = recursive_doubling_in_node,
    .traffic = recursive_doubling_traffic,
    .correction = correction_of_recursive_doubling,
    .memory = memory_of_rounds};

}  // namespace rdmacoll
