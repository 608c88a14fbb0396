#include "collectives/choose.h"
#include "collectives/halves.h"

namespace rdmacoll {

// Allgather. Part k is the contribution of rank k (parts may have different sizes).
Schedule ring_allgather(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  program.copy(program.output(shape.rank), program.input(shape.rank));
  ring_copies(program, shape);
  return program.finish();
}

namespace {

std::string_view prefers_ring_allgather(const Tuning&, const Facts&) {
  return "every link carries the same";
}

}  // namespace

extern constinit const AlgorithmRow ring_allgather_row{
    .algorithm = Algorithm{5},
    .name = "ring_allgather",
    .make = ring_allgather,
    .result = AlgorithmRow::Result::concatenation,
    .preferred = prefers_ring_allgather};

}  // namespace rdmacoll
