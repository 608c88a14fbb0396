#include "collectives/in_node.h"

namespace rdmacoll {

InNode::InNode(const NodeMemory& memory, const Facts& facts, AlgorithmRow::Result result,
               uint64_t segment_bytes)
    : memory_(memory_of_each(memory, facts.ranks)),
      facts_(facts),
      ranks_(facts.ranks),
      share_(static_cast<double>(facts.ranks) / processors_of(memory, facts.ranks)),
      is_wide_(facts.wide_sums && facts.ranks > 2),
      segments_(segments_of(row_bytes_of_rank(result, facts), segment_bytes)),
      segment_(row_bytes_of_rank(result, facts) / segments_),
      peer_(facts.in_place ? DataLocation::peer_caller : DataLocation::peer_pool),
      cost_(memory_, facts.ranks, facts.ranks, row_bytes_of_rank(result, facts), segment_) {}

}  // namespace rdmacoll
