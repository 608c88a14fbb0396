#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/between_nodes.h"
#include "collectives/builder.h"
#include "collectives/in_node.h"
#include "collectives/ranges.h"

namespace rdmacoll {

// Allgather. ceil(log2 p) rounds for any p. Blocks of ranks double as in recursive doubling, and
// the data of a block is contiguous. Thakur, Rabenseifner and Gropp, 2005.
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

namespace {

// Each rank packs what it passes on: half of all in the end. If p is not a power of two, the ranks
// of the last, smaller block read as much as the others hold.
double doubling_allgather_in_node(const InNode& node) {
  double work = node.copy(node.part());
  int held = 1;  // parts
  for (int round = 0; round < node.doublings(); ++round) {
    work += node.pack((round == 0 ? 1 : held / 2) * node.part()) + node.messages(2) +
            node.read(held * node.part());
    held *= 2;
  }
  return node.time(work, (node.doublings() + 1) * node.round());
}

// If p is not a power of two, each rank of a smaller block serves several ranks.
double doubling_allgather_between(const BetweenNodes& nodes) {
  const double part = nodes.part();
  double time = nodes.segments() * (nodes.copy(part) + nodes.pin(part));
  int held = 1;  // parts
  for (int round = 0; round < nodes.doublings(); ++round, held *= 2) {
    const int others = std::min(held, nodes.ranks() - held);
    const int served = (held + others - 1) / others;
    const double sent = std::max(held, served * others) * part;
    time += nodes.messages(1 + served) + nodes.latency() + nodes.segments() * nodes.port(sent);
  }
  return time + nodes.pin(held / 2 * part);
}

// The largest size, in bytes of all ranks together.
uint64_t doubling_bytes_of_gather(const Tuning& tuning, const Facts& facts) {
  if (facts.spread.is_doubled_the_long_way) return tuning.gather_bytes_long_way;
  const bool are_many = is_power_of_two(facts) && facts.ranks >= 32;
  return tuning.gather_bytes_port * (are_many ? 2 : 1);
}

std::string_view prefers_doubling_allgather(const Tuning& tuning, const Facts& facts) {
  const bool is_small = facts.bytes <= doubling_bytes_of_gather(tuning, facts);
  return is_small ? "small, between nodes: the fewest rounds" : "";
}

}  // namespace

extern constinit const AlgorithmRow doubling_allgather_row{
    .algorithm = Algorithm{9},
    .name = "doubling_allgather",
    .make = doubling_allgather,
    .result = AlgorithmRow::Result::concatenation,
    .cost_in_node = doubling_allgather_in_node,
    .cost_between_nodes = doubling_allgather_between,
    .preferred = prefers_doubling_allgather};

}  // namespace rdmacoll
