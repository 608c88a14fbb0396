// The inputs and the expected results of simulated ranks. Pure, so each rank can be checked alone.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "operation/operation.h"
#include "sim/gpu.h"
#include "sim/script.h"

namespace rdmacoll {

// The caller's memory for one operation.
struct SimMemory {
  std::vector<std::vector<std::byte>> inputs, outputs;
};

// The request of `rank`, with its inputs filled. Ranks are ranks of the operation's set. Every
// second tensor is in place, beginning with the first if `in_place`.
Request sim_request(const SimOperation& operation, int rank, bool in_place, SimMemory& memory);
// Checks the results of an operation that has succeeded. Returns "" if they are correct, otherwise
// a description of the error. `gpus`: have the memory of the operation's tensors if a GPU has it.
std::string sim_error(const SimOperation& operation, int ranks, int rank, const Operation& ended,
                      const SimGpus* gpus = nullptr);

}  // namespace rdmacoll
