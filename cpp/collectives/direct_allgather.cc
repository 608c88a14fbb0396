#include "collectives/choose.h"
#include "collectives/halves.h"
#include "collectives/ranges.h"

namespace rdmacoll {

// Allgather. Each rank sends its part to each rank: one round. Within a node all ranks read one
// copy of a part.
Schedule direct_allgather(const Shape& shape) {
  Builder program(shape.ranks, shape.rank, shape.ranks);
  program.copy(program.output(shape.rank), program.input(shape.rank));
  direct_copies(program, shape);
  return program.finish();
}

extern constinit const AlgorithmRow direct_allgather_row{
    .algorithm = Algorithm{22},
    .name = "direct_allgather",
    .make = direct_allgather,
    .result = AlgorithmRow::Result::concatenation,
    .preferred = prefers_one_round,
    .correction = correction_of_one_round};

}  // namespace rdmacoll
