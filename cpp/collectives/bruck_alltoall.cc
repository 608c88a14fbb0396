#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {
namespace {

// The distances from 1 to ranks - 1 that have this bit: one round moves their parts.
std::vector<int> distances_with(int bit, int ranks) {
  std::vector<int> distances;
  for (int distance = bit; distance < ranks; ++distance) {
    if ((distance & bit) != 0) distances.push_back(distance);
  }
  return distances;
}

int parts_on_their_way(int ranks) {
  std::size_t parts = 0;
  for (int bit = 1; bit < ranks; bit *= 2) parts += distances_with(bit, ranks).size();
  return static_cast<int>(parts);
}

}  // namespace

// A part for the rank `distance` above travels by the bits of that distance, through the work of
// other ranks. Each round has its own parts for the data that it brings.
Schedule bruck_alltoall(const Shape& shape) {
  const int ranks = shape.ranks;
  const int rank = shape.rank;

  Builder program(ranks, rank, 2 * ranks + parts_on_their_way(ranks));
  std::vector<Slice> held;  // by distance between giver and taker
  for (int d = 0; d < ranks; ++d) held.push_back(program.input((rank + d) % ranks));
  int way = 2 * ranks;
  for (int bit = 1; bit < ranks; bit *= 2) {
    const std::vector<int> distances = distances_with(bit, ranks);
    const auto count = static_cast<int>(distances.size());
    const Slice leaving = program.scratch(way, count);
    std::vector<Slice> sources;
    for (const int d : distances) sources.push_back(std::exchange(held[d], program.work(way++)));
    program.gather(leaving, sources);
    program.send((rank + bit) % ranks, leaving);
    program.receive((rank + ranks - bit) % ranks, program.work(way - count, count));
  }
  std::vector<Slice> got;  // by giver
  for (int giver = 0; giver < ranks; ++giver) got.push_back(held[(rank + ranks - giver) % ranks]);
  program.gather(program.output(ranks, ranks), got);
  return program.finish();
}

}  // namespace rdmacoll
