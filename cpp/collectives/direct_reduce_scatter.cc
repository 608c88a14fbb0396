#include <algorithm>

#include "collectives/halves.h"
#include "collectives/in_node.h"
#include "collectives/ranges.h"

namespace rdmacoll {

// Reduce-scatter. Rank k ends with the sum of part k (parts may have different sizes). Rank k
// collects part k from all ranks, and reduces once.
Schedule direct_reduce_scatter(const Shape& shape) {
  Builder program(shape, shape.ranks, Space::scratch);
  direct_sums(program, shape, program.output(shape.rank));
  return program.finish();
}

namespace {

double direct_reduce_scatter_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double work = peers * node.pack(part) + node.messages(2 * peers) + node.sum(part, peers);
  return node.time(work, node.round(peers) + node.round());
}

std::string_view prefers_direct_reduce_scatter(const Tuning& tuning, const Facts& facts) {
  const bool meets =
      facts.canonical || meets_where_partials_are_wide(facts, tuning.wide_ranks_scattered);
  const auto sharing = static_cast<uint64_t>(facts.spread.ranks_of_node);
  const uint64_t most =
      facts.spread.shares_nodes
          ? tuning.scatter_bytes_port / (sharing * sharing)
          : std::max(tuning.scatter_bytes_network,
                     tuning.scatter_bytes_rank * static_cast<uint64_t>(facts.ranks));
  const bool is_oversubscribed =
      facts.spread.shares_nodes && facts.spread.ranks_of_node > tuning.scatter_ranks_port;
  const uint64_t bytes = has_wide_partials(facts) ? facts.bytes / kWide : facts.bytes;
  const bool is_small = bytes <= most && !is_oversubscribed;
  return meets || facts.ranks <= 2 || is_small ? "one round, and each sum is made at one place"
                                               : "";
}

}  // namespace

extern constinit const AlgorithmRow direct_reduce_scatter_row{
    .algorithm = Algorithm{11},
    .name = "direct_reduce_scatter",
    .make = direct_reduce_scatter,
    .result = AlgorithmRow::Result::own_sum,
    .cost_in_node = direct_reduce_scatter_in_node,
    .preferred = prefers_direct_reduce_scatter,
    .segments = Segments::stages};

}  // namespace rdmacoll
