#include "collectives/in_node.h"

#include <algorithm>
#include <cmath>

#include "collectives/ranges.h"

namespace rdmacoll {
namespace {

// An exchange's parts are those that a rank gives and those that it gets.
double bytes_of_rank(AlgorithmRow::Result result, const Facts& facts) {
  const auto bytes = static_cast<double>(facts.bytes);
  return result == AlgorithmRow::Result::exchange ? 2 * bytes / facts.ranks : bytes;
}

double segments_of(double bytes, uint64_t segment_bytes) {
  return std::max(1.0, std::ceil(bytes / static_cast<double>(segment_bytes)));
}

}  // namespace

InNode::InNode(const NodeMemory& memory, const Facts& facts, AlgorithmRow::Result result,
               uint64_t segment_bytes)
    : memory_(memory),
      facts_(facts),
      ranks_(facts.ranks),
      is_wide_(has_wide_partials(facts)),
      segments_(segments_of(bytes_of_rank(result, facts), segment_bytes)),
      segment_(bytes_of_rank(result, facts) / segments_),
      peer_(facts.in_place ? MemoryPlace::peer_caller : MemoryPlace::peer_pool),
      cost_(memory, facts.ranks, bytes_of_rank(result, facts), segment_) {}

}  // namespace rdmacoll
