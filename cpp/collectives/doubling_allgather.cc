#include <algorithm>
#include <bit>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/doubling.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

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
    work += node.pack((round == 0 ? 1 : held / 2) * node.part()) +
            node.messages(2, held * node.part()) + node.read(held * node.part());
    held *= 2;
  }
  return node.time(work, (node.doublings() + 1) * node.round());
}

// A NIC moves what a rank has from its first message on, but for what comes last.
void doubling_allgather_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(std::has_single_bit(static_cast<unsigned>(traffic.ranks())));
  const int ranks = traffic.ranks();
  const auto each_message = [&](int block, auto visit) {
    for (int to = 0; to < ranks; ++to) {
      const int from = doubling_partner(ranks, block, to);
      if (from >= 0) visit(from, to, size_of_block(ranks, block, from) * traffic.part());
    }
  };
  std::vector<bool> is_pinned(static_cast<std::size_t>(ranks));
  for (int block = 1; block < ranks; block *= 2) {
    each_message(block, [&](int from, int to, double) {
      if (!traffic.are_near(from, to)) is_pinned[from] = is_pinned[to] = true;
    });
  }
  for (int rank = 0; rank < ranks; ++rank) {
    traffic.copy(rank, traffic.part());
    traffic.unpack(rank, traffic.part(), is_pinned[rank]);
  }
  for (int block = 1; block < ranks; block *= 2) {
    each_message(block, [&](int from, int to, double bytes) {
      // Each rank packs what the last round has brought, once.
      const bool is_first = from % block == to % block;
      if (is_first) traffic.pack_result(from, to, block == 1 ? bytes : bytes / 2, is_pinned[from]);
      traffic.move(from, to, bytes, is_pinned[to] && 2 * block < ranks);
    });
    traffic.deliver();
  }
}

}  // namespace

extern constinit const AlgorithmRow doubling_allgather_row{
    .algorithm = Algorithm{9},
    .name = "doubling_allgather",
    .make = doubling_allgather,
    .result = AlgorithmRow::Result::concatenation,
    .cost_in_node = doubling_allgather_in_node,
    .traffic = doubling_allgather_traffic};

}  // namespace rdmacoll
