#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// All-to-all. Parts 0 to p-1 go from this rank to each rank, parts p to 2p-1 come to it. In round d
// each rank sends to the rank d above, so that no rank is hit by all others at once.
Schedule pairwise_alltoall(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;

  Builder program(ranks, rank, 2 * ranks);
  const auto given = [&](int peer) { return program.input(peer); };
  const auto got = [&](int peer) { return program.output(ranks + peer); };
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    const int from = (rank + ranks - d) % ranks;
    program.send(to, given(to));
    program.receive(from, got(from));
  }
  program.copy(got(rank), given(rank));
  return program.finish();
}

namespace {

// Half of the parts are given, half are got.
double pairwise_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part() / 2;
  const double packs = peers * node.pack(part) + node.copy(part);
  const double work = packs + peers * (node.messages(2, part) + node.read(part));
  // The first message is under way while the other parts are packed.
  const double first = node.round(peers, part);
  const double hidden = node.has_core() ? std::min(first, packs - node.pack(part)) : 0;
  return node.time(work, first - hidden + node.round());
}

void pairwise_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(true);
  const double part = traffic.part() / 2;
  traffic.give(
      part, [&](auto visit) { traffic.each_pair(visit); },
      [&](int from, int to, double count) { traffic.move(from, to, part, false, count); },
      [&] {
        for (int rank = 0; rank < traffic.ranks(); ++rank) traffic.copy(rank, part);
      });
  traffic.deliver();
}

}  // namespace

extern constinit const AlgorithmRow pairwise_alltoall_row{.algorithm = Algorithm{12},
                                                          .name = "pairwise_alltoall",
                                                          .make = pairwise_alltoall,
                                                          .result = AlgorithmRow::Result::exchange,
                                                          .cost_in_node = pairwise_in_node,
                                                          .traffic = pairwise_traffic};

}  // namespace rdmacoll
