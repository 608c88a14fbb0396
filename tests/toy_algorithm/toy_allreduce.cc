// An algorithm for tests. All that a new algorithm needs beside this file is a row.
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Allreduce. Rank 0 collects all data, reduces once, and sends the sum to all ranks.
Schedule toy_allreduce(const Shape& shape) {
  const int ranks = shape.ranks;

  Builder program(shape, 1);
  const Slice mine = program.contribution(0);
  if (shape.rank > 0) {
    program.send(0, mine);
    program.receive(0, program.output(0));
    return program.finish();
  }
  std::vector<Slice> all(static_cast<std::size_t>(ranks), mine);
  for (int peer = 1; peer < ranks; ++peer) {
    all[static_cast<std::size_t>(peer)] = program.scratch(0);
    program.receive(peer, all[static_cast<std::size_t>(peer)]);
  }
  if (ranks == 1) {
    program.copy(program.output(0), mine, true);
  } else {
    program.reduce(program.output(0), all, true);
  }
  for (int peer = 1; peer < ranks; ++peer) program.send(peer, program.output(0));
  return program.finish();
}

namespace {

int memory_of_toy(const Shape& shape) { return shape.ranks + 1; }

// Rank 0 adds all data while the others wait, and then they copy the sum.
double toy_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double bytes = node.segment();
  const double sum = node.pack(bytes) + node.messages(2 * peers, bytes) + node.sum(bytes, peers);
  return node.time(sum + node.pack(bytes) + node.read(bytes), 3 * node.round());
}

void toy_traffic(Traffic& traffic) {
  const double bytes = traffic.segment();
  for (int rank = 1; rank < traffic.ranks(); ++rank) {
    traffic.pack(rank, 0, bytes);
    traffic.send(rank, 0, bytes);
  }
  traffic.deliver();
  traffic.sum(0, bytes, traffic.ranks() - 1);
  traffic.pack_result(0, 1, bytes, true);
  for (int rank = 1; rank < traffic.ranks(); ++rank) traffic.move(0, rank, bytes);
  traffic.deliver();
}

}  // namespace

extern constinit const AlgorithmRow toy_row{.algorithm = Algorithm{200},
                                            .name = "toy",
                                            .make = toy_allreduce,
                                            .result = AlgorithmRow::Result::sum,
                                            .cost_in_node = toy_in_node,
                                            .traffic = toy_traffic,
                                            .memory = memory_of_toy};

}  // namespace rdmacoll
