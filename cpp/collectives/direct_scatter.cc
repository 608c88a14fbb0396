#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/between_nodes.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"

namespace rdmacoll {

// Scatter. Part k belongs to rank k (parts may have different sizes); one message each.
Schedule direct_scatter(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  if (shape.rank != shape.root) {
    program.receive(shape.root, program.output(shape.rank));
    return program.finish();
  }
  for (int d = 1; d < shape.ranks; ++d) {
    const int peer = (shape.root + d) % shape.ranks;
    program.send(peer, program.input(peer));
  }
  program.copy(program.output(shape.root), program.input(shape.root));
  return program.finish();
}

namespace {

double direct_scatter_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double root = peers * (node.pack(part) + node.messages(1)) + node.copy(part);
  const double other = node.messages(1) + node.read(part);
  return node.time(root + other, std::max(root, other), 2 * node.round());
}

// All parts leave through the root's port, one after the other.
double direct_scatter_between(const BetweenNodes& nodes) {
  const int peers = nodes.ranks() - 1;
  const double part = nodes.part();
  const double sent = std::max(nodes.port(part), nodes.messages(1) + nodes.pin(part));
  return nodes.segments() * peers * sent + nodes.latency() + nodes.messages(1) + nodes.pin(part);
}

std::string_view prefers_direct_scatter(const Tuning&, const Facts&) { return "there is no other"; }

}  // namespace

extern constinit const AlgorithmRow direct_scatter_row{.algorithm = Algorithm{16},
                                                       .name = "direct_scatter",
                                                       .make = direct_scatter,
                                                       .result = AlgorithmRow::Result::own_value,
                                                       .cost_in_node = direct_scatter_in_node,
                                                       .cost_between_nodes = direct_scatter_between,
                                                       .preferred = prefers_direct_scatter};

}  // namespace rdmacoll
