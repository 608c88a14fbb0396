#include "collectives/choose.h"
#include "collectives/corrections.h"
#include "collectives/in_node.h"
#include "collectives/shared_stages.h"

namespace rdmacoll {

// Allgather. Each rank sends its part to each rank: one round. Within a node all ranks read one
// copy of a part.
Schedule direct_allgather(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  program.copy(program.output(shape.rank), program.input(shape.rank));
  direct_copies(program, shape);
  return program.finish();
}

namespace {

double direct_allgather_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double work = node.copy(part) + (peers > 0 ? node.pack(part) : 0) +
                      node.messages(2 * peers, part) + peers * node.read(part);
  return node.time(work, node.round(peers, part) + node.round());
}

}  // namespace

extern constinit const AlgorithmRow direct_allgather_row{
    .algorithm = Algorithm{22},
    .name = "direct_allgather",
    .make = direct_allgather,
    .result = AlgorithmRow::Result::concatenation,
    .cost_in_node = direct_allgather_in_node,
    .correction = correction_of_one_round};

}  // namespace rdmacoll
