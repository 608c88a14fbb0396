// Proves that every rank has begun, for collectives whose data does not come from every rank to
// every rank.
#pragma once

#include "collectives/schedule.h"

namespace rdmacoll {

// Appends ceil(log2 p) rounds of messages without bytes to a lowered schedule, which may be empty.
// After them each rank has heard of all others, directly or not. The messages count as steps that
// use the caller's memory, so that no rank ends before all have begun. They wait for no step of the
// schedule itself. Dissemination: Hensgen, Finkel and Manber, "Two algorithms for barrier
// synchronization", 1988.
void call_roll(Schedule& schedule);

}  // namespace rdmacoll
