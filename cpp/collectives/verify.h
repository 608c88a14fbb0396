// Executes the schedules of all ranks and servers symbolically. Sends complete only when the peer
// has received (the strictest order). All parts of input and output lie on one another (in place),
// also if ranks share their output.
#pragma once

#include <string>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/schedule.h"

namespace rdmacoll {

// Checks that each receive has its send, nothing can deadlock, and no two unordered steps touch one
// slice. Each rank must end with each contribution exactly once, scaled once, and in canonical
// order if `canonical`. Returns "" or a sentence that names rank and step.
std::string verify(const std::vector<Schedule>& schedules, AlgorithmRow::Result result, int root,
                   bool canonical);

}  // namespace rdmacoll
