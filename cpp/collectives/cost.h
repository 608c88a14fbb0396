// Estimates the time of a collective. It executes the schedules of all ranks against a model of
// links. Each step occupies its processor, each transfer its ports, and the last step to end gives
// the time. A new algorithm thus needs no formula, and its cost is that of its critical path.
//
// If all ranks are on one node, the costs are those of NodeMemory: ranks share the memory's rate,
// data in caches costs less, a cache serves one reader at a time, and one-copy reads cost each
// call and page. Otherwise NodeMemory does not count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/link_model.h"
#include "collectives/algorithms.h"
#include "collectives/schedule.h"

namespace rdmacoll {

struct Cost {
  double time_us = 0;
  uint64_t messages = 0;       // sent by the busiest rank
  uint64_t network_bytes = 0;  // sent by the busiest node to others
};

// `nodes`: the node of each schedule's rank. All ranks begin at once, and kSegmentsInFlight
// segments are in flight. After some tens of segments, the rest is extrapolated at the rate that
// was reached.
Cost cost_of(const std::vector<Schedule>& schedules, std::span<const int> nodes,
             const LinkModel& links, uint64_t bytes, uint64_t segment_bytes);

// Converts the bytes of a collective to those that cost_of() expects: of all parts of a rank. For
// an exchange `bytes` is the amount that each rank gives.
uint64_t row_bytes(AlgorithmRow::Result result, const Schedule& schedule, uint64_t bytes);

// The schedules of all ranks and servers, lowered for nodes whose ranks see each other's memory. If
// `is_visible`, they also see the callers' memory; otherwise that is packed.
std::vector<Schedule> lowered_schedules(Algorithm algorithm, Shape shape, const LinkModel& links,
                                        bool is_visible);

}  // namespace rdmacoll
