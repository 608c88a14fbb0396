#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/corrections.h"
#include "collectives/in_node.h"

namespace rdmacoll {

// Broadcast. The root sends everything to each rank: one round. Within a node all ranks read one
// copy of the data.
Schedule flat_broadcast(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, 1);
  if (shape.rank != shape.root) {
    program.receive(shape.root, program.output(0));
    return program.finish();
  }
  program.copy(program.output(0), program.input(0));
  for (int d = 1; d < shape.ranks; ++d) {
    program.send((shape.root + d) % shape.ranks, program.output(0));
  }
  return program.finish();
}

namespace {

// All ranks read the root's copy at once, so the root's cache may be the slowest part.
double flat_broadcast_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double bytes = node.segment();
  const double packed = node.copy(bytes) + (peers > 0 ? node.pack(bytes) : 0);
  // The first reader's data is served while messages to the others are posted.
  const double served = node.messages(2, bytes) + node.serve(bytes, peers);
  const double last = std::max(node.messages(peers + 1, bytes) + node.read(bytes), served);
  const double root = packed + node.messages(peers, bytes);
  const double reader =
      std::max(node.messages(1, bytes) + node.read(bytes), node.serve(bytes, peers));
  return node.time_of_broadcast(node.alone(packed) + last, root, reader, 2 * node.round());
}

}  // namespace

extern constinit const AlgorithmRow flat_broadcast_row{.algorithm = Algorithm{20},
                                                       .name = "flat_broadcast",
                                                       .make = flat_broadcast,
                                                       .result = AlgorithmRow::Result::root_value,
                                                       .cost_in_node = flat_broadcast_in_node,
                                                       .correction = correction_of_one_round,
                                                       .segments = Segments::tree};

}  // namespace rdmacoll
