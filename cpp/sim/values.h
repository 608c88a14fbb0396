// What the ranks of a simulation give, and what they must get: pure, so that every rank can be
// judged by itself.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "operation/operation.h"
#include "sim/script.h"

namespace rdmacoll {

// The caller's memory of one operation.
struct SimMemory {
  std::vector<std::vector<std::byte>> inputs, outputs;
};

// Ranks are those of the operation's set. What `rank` submits, with its inputs filled; every second
// tensor is in place, beginning with the first if `in_place`.
Request sim_request(const SimOperation& operation, int rank, bool in_place, SimMemory& memory);
// What is wrong with the results of an operation that has succeeded, or "".
std::string sim_complaint(const SimOperation& operation, int ranks, int rank,
                          const Operation& ended);

}  // namespace rdmacoll
