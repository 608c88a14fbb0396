#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

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

// All-to-all of small parts of one size, for any p: ceil(log2 p) messages of half of the parts
// each. Each part goes through as many ranks as its distance has bits. The parts beyond the first
// 2p are in transit. Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997.
//
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

namespace {

constexpr int kFewOfNode = 8;

// Each round gathers half of the parts, and brings half of them to the pool.
double bruck_in_node(const InNode& node) {
  // Few ranks of a node have one round, as in their roll call.
  const bool is_worth_it = node.ranks() > kFewOfNode && node.is_one_segment();
  if (!node.is_even() || !is_worth_it) return std::numeric_limits<double>::infinity();
  const double half = node.part() / 4 * node.ranks();
  const int rounds = node.doublings();
  const double work =
      rounds * (node.gather(half) + node.messages(2, half) + node.read_to_pool(half)) +
      node.unpack(2 * half);
  return node.time(work, rounds * node.round());
}

// The parts that a round moves: the number of distances below p with this bit.
int parts_of_round(int bit, int ranks) {
  return ranks / (2 * bit) * bit + std::max(0, ranks % (2 * bit) - bit);
}

// Each round waits for those before, with which it shares parts. The last one shares none with the
// rounds of bits that no distance has beside its own.
void bruck_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(true);
  const int ranks = traffic.ranks();
  const double part = traffic.part() / 2;
  const auto round = [&](int bit) {
    const double bytes = parts_of_round(bit, ranks) * part;
    for (int rank = 0; rank < ranks; ++rank) traffic.copy(rank, bytes);
    for (int rank = 0; rank < ranks; ++rank) traffic.keep(rank, (rank + bit) % ranks, bytes);
    traffic.deliver();
  };
  const auto last = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks - 1)));
  int bit = 1;
  for (; bit < std::min(last, ranks - last); bit *= 2) round(bit);
  traffic.side_by_side(2, [&](int number) {
    if (number == 1) return round(last);
    for (int other = bit; other < last; other *= 2) round(other);
  });
  for (int rank = 0; rank < ranks; ++rank) traffic.copy(rank, ranks * part);
}

}  // namespace

extern constinit const AlgorithmRow bruck_alltoall_row{.algorithm = Algorithm{17},
                                                       .name = "bruck_alltoall",
                                                       .make = bruck_alltoall,
                                                       .result = AlgorithmRow::Result::exchange,
                                                       .cost_in_node = bruck_in_node,
                                                       .traffic = bruck_traffic,
                                                       .needs_even = true};

}  // namespace rdmacoll
