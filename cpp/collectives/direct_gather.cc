#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/between_nodes.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"

namespace rdmacoll {

// Gather. Part k belongs to rank k (parts may have different sizes); one message each.
Schedule direct_gather(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  if (shape.rank != shape.root) {
    program.send(shape.root, program.input(shape.rank));
    return program.finish();
  }
  program.copy(program.output(shape.root), program.input(shape.root));
  for (int d = 1; d < shape.ranks; ++d) {
    const int peer = (shape.root + d) % shape.ranks;
    program.receive(peer, program.output(peer));
  }
  return program.finish();
}

namespace {

double direct_gather_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double other = node.pack(part) + node.messages(1);
  const double reads = peers * (node.read(part) + node.messages(1));
  const double root = node.copy(part) + reads;
  return node.time(std::max(other, node.copy(part)) + reads, std::max(other, root),
                   2 * node.round());
}

// All parts come through the root's port, one after the other.
double direct_gather_between(const BetweenNodes& nodes) {
  const int peers = nodes.ranks() - 1;
  const double part = nodes.part();
  const double taken = std::max(nodes.port(part), nodes.messages(1) + nodes.pin(part));
  return nodes.pin(part) + nodes.messages(1) + nodes.latency() + nodes.segments() * peers * taken;
}

std::string_view prefers_direct_gather(const Tuning&, const Facts&) { return "there is no other"; }

}  // namespace

extern constinit const AlgorithmRow direct_gather_row{
    .algorithm = Algorithm{15},
    .name = "direct_gather",
    .make = direct_gather,
    .result = AlgorithmRow::Result::root_concatenation,
    .cost_in_node = direct_gather_in_node,
    .cost_between_nodes = direct_gather_between,
    .preferred = prefers_direct_gather};

}  // namespace rdmacoll
