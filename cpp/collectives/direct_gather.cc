#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"

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

std::string_view prefers_direct_gather(const Tuning&, const Facts&) { return "there is no other"; }

}  // namespace

extern constinit const AlgorithmRow direct_gather_row{
    .algorithm = Algorithm{15},
    .name = "direct_gather",
    .make = direct_gather,
    .result = AlgorithmRow::Result::root_concatenation,
    .preferred = prefers_direct_gather};

}  // namespace rdmacoll
