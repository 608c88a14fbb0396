#include "collectives/between_nodes.h"

#include "collectives/ranges.h"

namespace rdmacoll {

BetweenNodes::BetweenNodes(const LinkModel& links, const Facts& facts, AlgorithmRow::Result result,
                           uint64_t segment_bytes)
    : links_(links),
      facts_(facts),
      segments_(segments_of(row_bytes_of_rank(result, facts), segment_bytes)),
      segment_(row_bytes_of_rank(result, facts) / segments_) {}

}  // namespace rdmacoll
