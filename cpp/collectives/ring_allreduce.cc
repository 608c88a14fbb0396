#include "collectives/choose.h"
#include "collectives/halves.h"

namespace rdmacoll {

// Allreduce. The segment is cut in `ranks` parts; 2(p-1) rounds with the neighbours only.
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
Schedule ring_allreduce(const Shape& shape) {
  Builder program(shape, shape.ranks);
  ring_sums(program, shape, Space::output);
  ring_copies(program, shape);
  return program.finish();
}

namespace {

std::string_view prefers_ring(const Tuning&, const Facts&) {
  return "large: adds while it moves, and every link carries the same";
}

}  // namespace

extern constinit const AlgorithmRow ring_row{
    .algorithm = Algorithm{1},
    .name = "ring",
    .make = ring_allreduce,
    .result = AlgorithmRow::Result::sum,
    .preferred = prefers_ring,
    .never_canonical = "a ring adds each part in another order",
    .segments = Segments::shares,
    .other_names = "xring"};

}  // namespace rdmacoll
