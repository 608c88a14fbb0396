// What a collective takes, found by executing the schedules of all ranks against a model of links:
// each step takes its processor, each transfer its ports, and the last step to end is the answer.
// So an algorithm has its cost for nothing, and it is that of its critical path.
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
  uint64_t messages = 0;       // that the busiest rank sends
  uint64_t network_bytes = 0;  // that the busiest node sends to others
};

// `nodes`: the node of each schedule's rank. All ranks begin at once, kSegmentsInFlight segments
// are on their way at a time; beyond some tens of segments the rest goes on at the rate that was
// reached.
Cost cost_of(const std::vector<Schedule>& schedules, std::span<const int> nodes,
             const LinkModel& links, uint64_t bytes, uint64_t segment_bytes);

// What cost_of() takes for the bytes of a collective (of an exchange: what each rank gives): those
// of all parts of a rank.
uint64_t row_bytes(AlgorithmRow::Result result, const Schedule& schedule, uint64_t bytes);

// Of all ranks and servers, lowered for nodes in which everybody sees everybody's memory: the
// caller's too if `is_visible`, else it is packed.
std::vector<Schedule> lowered_schedules(Algorithm algorithm, Shape shape, const LinkModel& links,
                                        bool is_visible);

}  // namespace rdmacoll
