#include "collectives/choose.h"

#include <algorithm>
#include <bit>
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

bool breaks_canonical_order(const Facts& facts, Algorithm algorithm) {
  return facts.canonical && !is_in_canonical_order(algorithm, facts);
}

// Whether partial sums travel that are longer than contributions and results. Two ranks send none.
// Algorithms that make each sum at one place do not send them either.
bool has_wide_partials(const Facts& facts) { return facts.wide_sums && facts.ranks > 2; }

// Bytes that a rank sends in each round of a tree after the first.
uint64_t partial_bytes(const Facts& facts) {
  return has_wide_partials(facts) ? facts.bytes * kWide : facts.bytes;
}

// Whether 16-bit floats are summed at one place, so that no partial sum travels. More ranks than
// `ranks_sharing` would send too much through the ports that they share.
bool meets_where_partials_are_wide(const Facts& facts, int ranks_sharing) {
  return has_wide_partials(facts) && (!facts.spread.shares_nodes || facts.ranks <= ranks_sharing);
}

bool is_power_of_two(const Facts& facts) {
  return std::has_single_bit(static_cast<unsigned>(facts.ranks));
}

uint64_t doubling_bytes_between_nodes(const Tuning& tuning, const Facts& facts) {
  if (facts.ranks <= 2) return tuning.doubling_bytes_pair;
  if (facts.spread.is_doubled_the_long_way &&
      !breaks_canonical_order(facts, Algorithm::two_level)) {
    return tuning.doubling_bytes_long_way;
  }
  // If the number of ranks is not a power of two, some ranks send twice as much.
  const bool are_many = facts.ranks >= 8 && !facts.spread.shares_nodes;
  uint64_t most = tuning.doubling_bytes_network;
  if (!is_power_of_two(facts) && !facts.spread.is_doubled_by_node) {
    most = std::min(most, tuning.doubling_bytes_uneven * (are_many ? 4 : 1));
  }
  const auto sharing = static_cast<uint64_t>(facts.spread.ranks_of_node);
  return std::min(most, tuning.doubling_bytes_port / sharing);
}

// Whether the message is so small that rounds cost more than bytes.
bool is_short(const Tuning& tuning, const Facts& facts) {
  if (!facts.one_node) {
    return partial_bytes(facts) <= doubling_bytes_between_nodes(tuning, facts);
  }
  return facts.bytes <=
         (facts.ranks <= 2 ? tuning.doubling_bytes_shared_pair : tuning.doubling_bytes_shared);
}

// Whether direct pays: two rounds of p-1 messages each.
bool is_of_middle_size(const Tuning& tuning, const Facts& facts) {
  const auto ranks = static_cast<uint64_t>(facts.ranks);
  const bool is_worth_messages = facts.ranks <= tuning.direct_ranks_network ||
                                 facts.bytes >= tuning.direct_bytes_pair * ranks * ranks;
  const uint64_t most = facts.ranks <= tuning.direct_ranks_at_once ? tuning.direct_bytes_network
                                                                   : tuning.direct_bytes_at_once;
  return is_worth_messages && facts.bytes <= most;
}

// Whether the message is so small that each rank rather does all of the work than waits for a
// second round.
bool is_for_one_shot(const Tuning& tuning, const Facts& facts) {
  return facts.one_node && facts.ranks > 2 && facts.ranks <= tuning.one_shot_ranks_shared &&
         facts.bytes * static_cast<uint64_t>(facts.ranks) <= tuning.one_shot_bytes_shared;
}

Preference by_size_in_node(const Tuning& tuning, const Facts& facts) {
  if (facts.on_gpus && facts.ranks == 2) {
    return {Algorithm::one_shot, "two ranks with GPUs: neither waits twice for the other's turn"};
  }
  if (is_for_one_shot(tuning, facts)) {
    return {Algorithm::one_shot, "small, few ranks of a node: one round"};
  }
  if (is_short(tuning, facts)) {
    return {Algorithm::recursive_doubling, "small, within a node: the fewest rounds"};
  }
  return {Algorithm::direct, "within a node: each rank reads the memory of the others"};
}

Preference by_size_between_nodes(const Tuning& tuning, const Facts& facts) {
  if (is_short(tuning, facts)) {
    return {Algorithm::recursive_doubling, "small, between nodes: the fewest rounds"};
  }
  const bool meets = meets_where_partials_are_wide(facts, tuning.wide_ranks_port) ||
                     (facts.ranks <= 3 && facts.bytes <= tuning.direct_bytes_port);
  if (facts.spread.shares_nodes && !meets && !breaks_canonical_order(facts, Algorithm::two_level)) {
    return {Algorithm::two_level,
            "nodes with several ranks: each byte crosses as if a node were one rank"};
  }
  if (is_of_middle_size(tuning, facts)) {
    return {Algorithm::direct, "middle size: two rounds"};
  }
  // A ring adds in any order. Unless p is a power of two, it takes less time than halving and
  // doubling.
  const bool may_be_ring = !facts.canonical && !is_power_of_two(facts) && !has_wide_partials(facts);
  const bool few =
      facts.ranks <= (may_be_ring ? tuning.direct_ranks_network : tuning.direct_ranks_at_once);
  // With more ranks, a ring has more rounds and smaller parts.
  const int ring_ranks =
      is_power_of_two(facts) ? tuning.ring_ranks_network : tuning.ring_ranks_uneven;
  const bool fits = facts.bytes <= tuning.halving_bytes_network || facts.canonical ||
                    has_wide_partials(facts) || facts.ranks > ring_ranks;
  if (!few && fits && !breaks_canonical_order(facts, Algorithm::halving_doubling)) {
    return {Algorithm::halving_doubling,
            "many ranks: as few bytes as a ring, in a number of rounds that grows with log2 p"};
  }
  if (facts.canonical) return {Algorithm::direct, "canonical order: each sum is made at one place"};
  if (has_wide_partials(facts)) {
    return {Algorithm::direct, "16-bit floats: sums that are not whole would be twice as long"};
  }
  return {Algorithm::ring, "large: adds while it moves, and every link carries the same"};
}

Preference by_size(const Tuning& tuning, const Facts& facts) {
  Preference best =
      facts.one_node ? by_size_in_node(tuning, facts) : by_size_between_nodes(tuning, facts);
  if (breaks_canonical_order(facts, best.algorithm)) {
    best = {Algorithm::direct, "canonical order: each sum is made at one place"};
  }
  return best;
}

std::optional<Algorithm> forced_at(const Facts& facts) {
  for (const Forced& forced : facts.forced) {
    if (facts.bytes <= forced.bytes_max) return forced.algorithm;
  }
  return std::nullopt;
}

// Whether segments are cut so small that packed data stays in the caches of the node. Scattered
// data is not cut so: each byte is packed for one rank alone, and caches gain nothing.
bool is_cut_for_caches(Algorithm algorithm, const Tuning& tuning, const Facts& facts) {
  const AlgorithmRow* row = row_of(algorithm);
  if (row == nullptr || is_scattered(row->result)) return false;
  const uint64_t whole = is_sum(row->result) ? tuning.whole_bytes_shared : 0;
  return facts.bytes > whole && !facts.in_place;
}

}  // namespace

uint64_t segment_bytes_of(Algorithm algorithm, const Tuning& tuning, const Facts& facts) {
  if (facts.segment_bytes) return *facts.segment_bytes;
  if (facts.on_gpus && facts.one_node) return tuning.segment_bytes_gpus;
  const uint64_t usual =
      facts.one_node ? tuning.segment_bytes_shared : tuning.segment_bytes_network;
  const int shares =
      algorithm == Algorithm::parameter_server && facts.servers > 0 ? facts.servers : facts.ranks;
  const uint64_t of_shares = tuning.segment_bytes_rank * static_cast<uint64_t>(shares);
  if (facts.one_node && is_cut_for_caches(algorithm, tuning, facts)) {
    const uint64_t cached = tuning.packed_segment_bytes_rank * static_cast<uint64_t>(facts.ranks);
    if (!facts.stages_gpus) return cached;
    // Each copy from or to a GPU has a fixed cost.
    return std::max(cached, std::min(facts.bytes / kSegmentsInFlight, tuning.segment_bytes_shared));
  }
  switch (algorithm) {
    case Algorithm::binomial_broadcast:
    case Algorithm::binomial_reduce:
      if (facts.one_node) break;
      [[fallthrough]];
    case Algorithm::pipelined_tree:
      return std::clamp(facts.bytes / kSegmentsInFlight, tuning.segment_bytes_trees_least,
                        tuning.segment_bytes_trees);
    case Algorithm::ring_allgather:
    case Algorithm::doubling_allgather:
    case Algorithm::pairwise_alltoall:
    case Algorithm::bruck_alltoall:
    case Algorithm::direct_gather:
    case Algorithm::direct_scatter:
      return usual;  // nothing is reduced
    case Algorithm::direct:
    case Algorithm::direct_reduce:
    case Algorithm::direct_reduce_scatter:
    case Algorithm::halving_doubling:
    case Algorithm::parameter_server:
    case Algorithm::two_level:
      if (!facts.one_node) return std::min(tuning.segment_bytes_stages, of_shares);
      break;
    case Algorithm::ring:
      if (!facts.one_node) return std::min(usual, of_shares);
      break;
    default:
      break;
  }
  // Segments of a broadcast follow one another down the tree.
  if (algorithm == Algorithm::binomial_broadcast) return usual / 4;
  return usual;
}

namespace {

// The number of rounds of recursive doubling with a message between nodes.
int rounds_across(const Shape& shape) {
  int rounds = 0;
  for (int block = 1; block < shape.ranks; block *= 2) {
    bool crosses = false;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const int partner = doubling_partner(shape.ranks, block, rank);
      crosses |= partner >= 0 && shape.node_of(rank) != shape.node_of(partner);
    }
    rounds += crosses ? 1 : 0;
  }
  return rounds;
}

}  // namespace

Spread::Spread(const Shape& shape) {
  std::map<int, int> nodes;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    ranks_of_node = std::max(ranks_of_node, ++nodes[shape.node_of(rank)]);
  }
  const auto count = static_cast<int>(nodes.size());
  shares_nodes = count > 1 && count < shape.ranks;
  is_canonical_by_node = is_canonical(Algorithm::two_level, shape);
  const auto nodes_alone = static_cast<int>(std::bit_width(nodes.size() - 1));
  const int across = rounds_across(shape);
  is_doubled_by_node = shares_nodes && count % 2 == 0 && across <= nodes_alone;
  is_doubled_the_long_way = shares_nodes && shape.ranks > 5 && across > 2 * nodes_alone;
}

namespace {

Preference for_sum(const Tuning& tuning, const Facts& facts) {
  if (facts.servers > 0) {
    return {Algorithm::parameter_server, "parameter servers: each of them sums one part of all"};
  }
  Preference best = by_size(tuning, facts);
  const std::optional<Algorithm> forced = forced_at(facts);
  if (forced && breaks_canonical_order(facts, *forced)) {
    best.reason = "the one that is forced has no canonical order here";
  } else if (forced) {
    best = {*forced, "forced by RDMACOLL_ALLREDUCE_ALGORITHM"};
  }
  return best;
}

Preference for_root_value(const Tuning& tuning, const Facts& facts) {
  const uint64_t most =
      facts.ranks <= 2 ? tuning.binomial_bytes_pair : tuning.binomial_bytes_network;
  const bool are_two_nodes =
      facts.spread.shares_nodes && facts.ranks <= 2 * facts.spread.ranks_of_node;
  if (!facts.one_node && !are_two_nodes && facts.bytes > most) {
    return {Algorithm::pipelined_tree, "large, between nodes: no rank sends more than it receives"};
  }
  return {Algorithm::binomial_broadcast,
          "the fewest rounds, and neighbours of a node get it from each other"};
}

// The largest size, in bytes of all ranks together, at which allgather doubles.
uint64_t doubling_bytes_of_gather(const Tuning& tuning, const Facts& facts) {
  const auto ranks = static_cast<uint64_t>(facts.ranks);
  if (facts.spread.shares_nodes) {
    if (facts.spread.is_doubled_the_long_way) return tuning.gather_bytes_long_way;
    const bool are_many = is_power_of_two(facts) && facts.ranks >= 32;
    return tuning.gather_bytes_port * (are_many ? 2 : 1);
  }
  if (is_power_of_two(facts)) return tuning.gather_bytes_rank * ranks;
  return (facts.ranks < 8 ? tuning.gather_bytes_uneven : tuning.gather_bytes_rank / 2) * ranks;
}

Preference for_concatenation(const Tuning& tuning, const Facts& facts) {
  // With three ranks both algorithms take two rounds, and those of a ring are shorter. On two nodes
  // a ring crosses in each round.
  const bool doubles = !facts.one_node && (facts.ranks != 3 || facts.spread.shares_nodes);
  if (doubles && facts.bytes <= doubling_bytes_of_gather(tuning, facts)) {
    return {Algorithm::doubling_allgather, "small, between nodes: the fewest rounds"};
  }
  return {Algorithm::ring_allgather, "every link carries the same"};
}

Preference for_own_sum(const Tuning& tuning, const Facts& facts) {
  const bool meets = facts.one_node || facts.canonical ||
                     meets_where_partials_are_wide(facts, tuning.wide_ranks_scattered);
  const auto sharing = static_cast<uint64_t>(facts.spread.ranks_of_node);
  const uint64_t most =
      facts.spread.shares_nodes
          ? tuning.scatter_bytes_port / (sharing * sharing)
          : std::max(tuning.scatter_bytes_network,
                     tuning.scatter_bytes_rank * static_cast<uint64_t>(facts.ranks));
  const bool is_oversubscribed =
      facts.spread.shares_nodes && facts.spread.ranks_of_node > tuning.scatter_ranks_port;
  const uint64_t bytes = has_wide_partials(facts) ? facts.bytes / kWide : facts.bytes;
  if (meets || facts.ranks <= 2 || (bytes <= most && !is_oversubscribed)) {
    return {Algorithm::direct_reduce_scatter, "one round, and each sum is made at one place"};
  }
  return {Algorithm::ring_reduce_scatter,
          "large: adds while it moves, and every link carries the same"};
}

bool is_short_reduce(const Tuning& tuning, const Facts& facts) {
  const uint64_t bytes = partial_bytes(facts);
  if (facts.one_node) return bytes <= tuning.doubling_bytes_shared;
  const bool is_for_tree = !has_wide_partials(facts) || bytes <= tuning.reduce_bytes_wide ||
                           facts.ranks > tuning.reduce_ranks_wide;
  if (facts.spread.shares_nodes && tuning.reduces_by_node && is_for_tree) return true;
  if (facts.ranks <= 2) return bytes <= tuning.binomial_bytes_pair;
  return bytes <= std::max(tuning.reduce_bytes_network,
                           tuning.reduce_bytes_rank * static_cast<uint64_t>(facts.ranks));
}

Preference for_root_sum(const Tuning& tuning, const Facts& facts) {
  const bool is_tree =
      is_short_reduce(tuning, facts) && !breaks_canonical_order(facts, Algorithm::binomial_reduce);
  if (is_tree) return {Algorithm::binomial_reduce, "the fewest rounds, and little crosses nodes"};
  return {Algorithm::direct_reduce, "each sum is made at one place, and goes to the root"};
}

Preference for_exchange(const Tuning& tuning, const Facts& facts) {
  const auto pairs = static_cast<uint64_t>(facts.ranks) * static_cast<uint64_t>(facts.ranks);
  const uint64_t most =
      facts.spread.shares_nodes ? tuning.bruck_bytes_port : tuning.bruck_bytes_network;
  const bool is_small = facts.bytes <= most * pairs;
  if (facts.is_even && is_small && !facts.one_node && facts.ranks >= tuning.bruck_ranks_network) {
    return {Algorithm::bruck_alltoall, "small, many ranks: log2 p messages instead of p-1"};
  }
  return {Algorithm::pairwise_alltoall, "each byte goes straight to where it belongs"};
}

Preference preferred(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts) {
  using Result = AlgorithmRow::Result;
  switch (result) {
    case Result::sum:
      return for_sum(tuning, facts);
    case Result::root_value:
      return for_root_value(tuning, facts);
    case Result::concatenation:
      return for_concatenation(tuning, facts);
    case Result::own_sum:
      return for_own_sum(tuning, facts);
    case Result::own_value:
      return {Algorithm::direct_scatter, "there is no other"};
    case Result::root_sum:
      return for_root_sum(tuning, facts);
    case Result::root_concatenation:
      return {Algorithm::direct_gather, "there is no other"};
    case Result::exchange:
      return for_exchange(tuning, facts);
  }
  return {Algorithm::none, ""};
}

}  // namespace

Choice choose(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  const Preference best = preferred(result, tuning, facts);
  return {best.algorithm, segment_bytes_of(best.algorithm, tuning, facts), best.reason};
}

bool adds_in_canonical_order(const Choice& choice, const Facts& facts) {
  return is_in_canonical_order(choice.algorithm, facts);
}

}  // namespace rdmacoll
