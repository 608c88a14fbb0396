// Proves that every rank has begun, for collectives whose data does not come from every rank to
// every rank.
#pragma once

#include "collectives/algorithms.h"

namespace rdmacoll {

// Appends messages without bytes to a lowered schedule, which may be empty. After them each rank
// has heard of all others, directly or not. The messages count as steps that use the caller's
// memory, so that no rank ends before all have begun. They wait for no step of the schedule itself.
//
// Few ranks of a node have one round: each sends to every rank to which the schedule sends nothing.
// Ranks that share processors give theirs away in each round. Other worlds have ceil(log2 p)
// rounds, by dissemination: Hensgen, Finkel and Manber, "Two algorithms for barrier
// synchronization", 1988.
void call_roll(Schedule& schedule, const Shape& shape);

}  // namespace rdmacoll
