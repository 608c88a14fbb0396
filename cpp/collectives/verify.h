// Executes the schedules of all ranks, and of the servers behind them, symbolically. Sends complete
// only when the peer has received (the strictest order), and all parts of input and output lie on
// one another (in place), also where ranks share their output.
#pragma once

#include <string>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/schedule.h"

namespace rdmacoll {

// "" when each receive has its send, nothing can deadlock, no two unordered steps touch one slice,
// and each rank ends with each contribution exactly once (in canonical order if `canonical`),
// scaled once. Otherwise a sentence that names rank and step.
std::string verify(const std::vector<Schedule>& schedules, AlgorithmRow::Result result, int root,
                   bool canonical);

}  // namespace rdmacoll
