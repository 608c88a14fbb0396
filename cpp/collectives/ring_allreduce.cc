#include "collectives/choose.h"
#include "collectives/shared_stages.h"
#include "collectives/traffic.h"

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

// Small sums share batches, so their order of additions must not depend on their company. Many
// ranks take many rounds, and each of them waits for the latest rank (`rdmacoll sim scale`,
// 2026-11-25).
std::string_view correction_of_ring(const Tuning& tuning, const Facts& facts) {
  constexpr int kRanksMost = 128;
  if (facts.bytes <= tuning.batched_bytes) {
    return "small sums share batches, and a ring has no canonical order";
  }
  return facts.ranks > kRanksMost ? "a ring of so many ranks has more rounds than the model covers"
                                  : "";
}

void ring_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(true);
  ring_sums(traffic, Space::output);
  ring_copies(traffic, true);
}

}  // namespace

extern constinit const AlgorithmRow ring_row{
    .algorithm = Algorithm{1},
    .name = "ring",
    .make = ring_allreduce,
    .result = AlgorithmRow::Result::sum,
    .traffic = ring_traffic,
    .correction = correction_of_ring,
    .never_canonical = "a ring adds each part in another order",
    .segments = Segments::shares,
    .other_names = "xring"};

}  // namespace rdmacoll
