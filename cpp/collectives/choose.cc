#include "collectives/choose.h"

#include <algorithm>
#include <map>

namespace rdmacoll {
namespace {

struct Preference {
  Algorithm algorithm;
  std::string_view reason;
};

bool is_in_canonical_order(Algorithm algorithm, const Facts& facts) {
  if (algorithm == Algorithm::two_level) return facts.spread.is_canonical_by_node;
  return is_canonical(algorithm, {.ranks = facts.ranks});
}

// In canonical order, 16-bit floats stay float32 until the root of the tree: only an algorithm that
// reduces once, where all sources meet, can do that.
bool breaks_canonical_order(const Facts& facts, Algorithm algorithm) {
  if (!facts.canonical || algorithm == Algorithm::direct) return false;
  return is_16_bit_float(facts.dtype) || !is_in_canonical_order(algorithm, facts);
}

// Partial sums of 16-bit floats are rounded on the way, and may overflow before they are divided;
// where all sources meet they are summed in float32.
bool is_rounded_on_the_way(const Facts& facts) {
  return is_16_bit_float(facts.dtype) && facts.ranks > 2;
}

uint64_t doubling_bytes_between_nodes(const Tuning& tuning, const Facts& facts) {
  if (facts.ranks <= 2) return tuning.doubling_bytes_pair;
  const auto sharing = static_cast<uint64_t>(facts.spread.ranks_of_node);
  return std::min(tuning.doubling_bytes_network, tuning.doubling_bytes_port / sharing);
}

// So small that rounds cost more than bytes.
bool is_short(const Tuning& tuning, const Facts& facts) {
  return facts.bytes <= (facts.one_node ? tuning.doubling_bytes_shared
                                        : doubling_bytes_between_nodes(tuning, facts));
}

// Two rounds, of p-1 messages each.
bool is_of_middle_size(const Tuning& tuning, const Facts& facts) {
  return facts.ranks <= tuning.direct_ranks_network && facts.bytes <= tuning.direct_bytes_network;
}

Preference by_size_in_node(const Tuning& tuning, const Facts& facts) {
  if (is_short(tuning, facts)) {
    return {Algorithm::recursive_doubling, "small, within a node: the fewest rounds"};
  }
  return {Algorithm::direct, "within a node: everybody reads what it needs where it lies"};
}

Preference by_size_between_nodes(const Tuning& tuning, const Facts& facts) {
  if (is_short(tuning, facts)) {
    return {Algorithm::recursive_doubling, "small, between nodes: the fewest rounds"};
  }
  if (facts.spread.shares_nodes && !breaks_canonical_order(facts, Algorithm::two_level)) {
    return {Algorithm::two_level,
            "nodes with several ranks: each byte crosses as if a node were one rank"};
  }
  if (is_of_middle_size(tuning, facts)) {
    return {Algorithm::direct, "few ranks, middle size: two rounds"};
  }
  const bool few = facts.ranks <= tuning.direct_ranks_network;
  const bool fits = facts.bytes <= tuning.halving_bytes_network || facts.canonical;
  if (!few && fits && !breaks_canonical_order(facts, Algorithm::halving_doubling)) {
    return {Algorithm::halving_doubling,
            "many ranks: as few bytes as a ring, in a number of rounds that grows with log2 p"};
  }
  if (facts.canonical) return {Algorithm::direct, "canonical order: each sum is made at one place"};
  return {Algorithm::ring, "large: adds while it moves, and every link carries the same"};
}

Preference by_size(const Tuning& tuning, const Facts& facts) {
  if (is_rounded_on_the_way(facts)) {
    return {Algorithm::direct, "16-bit floats: summed in float32, and rounded once"};
  }
  Preference best =
      facts.one_node ? by_size_in_node(tuning, facts) : by_size_between_nodes(tuning, facts);
  if (breaks_canonical_order(facts, best.algorithm)) {
    best = {Algorithm::direct, "canonical order of 16-bit floats: only one rounding"};
  }
  return best;
}

Choice only(Algorithm algorithm, const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  return {algorithm, segment_bytes_of(algorithm, tuning, facts), "there is no other"};
}

std::optional<Algorithm> forced_at(const Facts& facts) {
  for (const Forced& forced : facts.forced) {
    if (facts.bytes <= forced.bytes_max) return forced.algorithm;
  }
  return std::nullopt;
}

}  // namespace

uint64_t segment_bytes_of(Algorithm algorithm, const Tuning& tuning, const Facts& facts) {
  if (facts.segment_bytes) return *facts.segment_bytes;
  const uint64_t usual =
      facts.one_node ? tuning.segment_bytes_shared : tuning.segment_bytes_network;
  switch (algorithm) {
    case Algorithm::pipelined_tree:
      return std::clamp(facts.bytes / kSegmentsInFlight, tuning.segment_bytes_trees_least,
                        tuning.segment_bytes_trees);
    case Algorithm::binomial_broadcast:
      return usual / 4;  // segments follow one another down the tree
    case Algorithm::ring_allgather:
    case Algorithm::doubling_allgather:
    case Algorithm::pairwise_alltoall:
    case Algorithm::direct_gather:
    case Algorithm::direct_scatter:
      return usual;  // nothing is reduced, so nothing is packed for that
    case Algorithm::two_level:
      if (!facts.one_node) return tuning.segment_bytes_two_level;
      break;
    default:
      break;
  }
  const bool is_packed = facts.one_node && facts.bytes > tuning.whole_bytes_shared &&
                         facts.bytes < tuning.one_copy_bytes;
  return is_packed ? tuning.packed_segment_bytes_shared : usual;
}

Spread::Spread(const Shape& shape) {
  std::map<int, int> nodes;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    ranks_of_node = std::max(ranks_of_node, ++nodes[shape.node_of(rank)]);
  }
  const auto count = static_cast<int>(nodes.size());
  shares_nodes = count > 1 && count < shape.ranks;
  is_canonical_by_node = is_canonical(Algorithm::two_level, shape);
}

Choice choose_allreduce(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  Preference best = by_size(tuning, facts);
  const std::optional<Algorithm> forced = forced_at(facts);
  if (forced && breaks_canonical_order(facts, *forced)) {
    best.reason = "the one that is forced has no canonical order here";
  } else if (forced) {
    best = {*forced, "forced by RDMACOLL_ALLREDUCE_ALGORITHM"};
  }
  return {best.algorithm, segment_bytes_of(best.algorithm, tuning, facts), best.reason};
}

Choice choose_broadcast(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  Preference best{Algorithm::binomial_broadcast,
                  "the fewest rounds, and neighbours of a node get it from each other"};
  const bool is_apart = !facts.one_node && !facts.spread.shares_nodes && facts.ranks > 2;
  if (is_apart && facts.bytes > tuning.binomial_bytes_network) {
    best = {Algorithm::pipelined_tree,
            "large, one rank a node: nobody sends more than it receives"};
  }
  return {best.algorithm, segment_bytes_of(best.algorithm, tuning, facts), best.reason};
}

Choice choose_allgather(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  Preference best{Algorithm::ring_allgather, "every link carries the same"};
  // With three ranks both take two rounds, and a ring has shorter ones.
  const bool doubles = !facts.one_node && facts.ranks != 3;
  const uint64_t doubling_bytes =
      facts.spread.shares_nodes ? tuning.gather_bytes_port
                                : tuning.gather_bytes_rank * static_cast<uint64_t>(facts.ranks);
  if (doubles && facts.bytes <= doubling_bytes) {
    best = {Algorithm::doubling_allgather, "small, between nodes: the fewest rounds"};
  }
  return {best.algorithm, segment_bytes_of(best.algorithm, tuning, facts), best.reason};
}

bool adds_in_canonical_order(const Choice& choice, const Facts& facts) {
  return is_in_canonical_order(choice.algorithm, facts);
}

Choice choose_reduce_scatter(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  Preference best{Algorithm::ring_reduce_scatter,
                  "large: adds while it moves, and every link carries the same"};
  const bool meets = facts.one_node || facts.canonical || is_rounded_on_the_way(facts);
  if (meets || is_of_middle_size(tuning, facts)) {
    best = {Algorithm::direct_reduce_scatter, "one round, and each sum is made at one place"};
  }
  return {best.algorithm, segment_bytes_of(best.algorithm, tuning, facts), best.reason};
}

Choice choose_alltoall(const Tuning& tuning, const Facts& facts) {
  return only(Algorithm::pairwise_alltoall, tuning, facts);
}

Choice choose_reduce(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  Preference best{Algorithm::direct_reduce, "each sum is made at one place, and goes to the root"};
  const bool is_tree = is_short(tuning, facts) && !is_rounded_on_the_way(facts) &&
                       !breaks_canonical_order(facts, Algorithm::binomial_reduce);
  if (is_tree) best = {Algorithm::binomial_reduce, "small: the fewest rounds"};
  return {best.algorithm, segment_bytes_of(best.algorithm, tuning, facts), best.reason};
}

Choice choose_gather(const Tuning& tuning, const Facts& facts) {
  return only(Algorithm::direct_gather, tuning, facts);
}

Choice choose_scatter(const Tuning& tuning, const Facts& facts) {
  return only(Algorithm::direct_scatter, tuning, facts);
}

}  // namespace rdmacoll
