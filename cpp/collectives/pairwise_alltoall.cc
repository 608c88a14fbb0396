#include "collectives/algorithms.h"
#include "collectives/between_nodes.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"

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
  const double work =
      peers * (node.pack(part) + node.messages(2) + node.read(part)) + node.copy(part);
  return node.time(work, node.round(peers) + node.round());
}

// All parts leave one after the other. Those that have come are taken while the last one is under
// way.
double pairwise_between(const BetweenNodes& nodes) {
  const int peers = nodes.ranks() - 1;
  const double part = nodes.part() / 2;
  const double each = nodes.messages(1) + nodes.pin(part);
  const double ports = peers * nodes.port(part);
  const double work = peers * 2 * each + nodes.copy(part);
  const double posts = std::max(nodes.messages(1) + (peers - 1) * each, ports);
  const double taken_late = std::max(0.0, (peers - 1) * each - nodes.latency());
  const double first = nodes.pin(part) + posts + nodes.latency() + taken_late + each;
  return first + (nodes.segments() - 1) * std::max(ports, work);
}

std::string_view prefers_pairwise_alltoall(const Tuning&, const Facts&) {
  return "each byte goes straight to where it belongs";
}

}  // namespace

extern constinit const AlgorithmRow pairwise_alltoall_row{.algorithm = Algorithm{12},
                                                          .name = "pairwise_alltoall",
                                                          .make = pairwise_alltoall,
                                                          .result = AlgorithmRow::Result::exchange,
                                                          .cost_in_node = pairwise_in_node,
                                                          .cost_between_nodes = pairwise_between,
                                                          .preferred = prefers_pairwise_alltoall};

}  // namespace rdmacoll
