// A training job of several ranks on one simulated node. Real engines are stepped under a virtual
// clock. Copies, sums and messages take the time that the cost model gives them for the job's
// machine. The root chooses by a profile that may be wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/link_model.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

struct NodeJob {
  int ranks = 2;
  // A training step: so many sums of so many bytes (float32), submitted together. The next step
  // begins when all ranks have all sums, or if the job is free, on each rank when it has its sums.
  int sums = 8;
  uint64_t bytes = 0;
  int steps = 20;
  NodeMemory machine = {};  // the true costs
  NodeMemory profile = {};  // those that the root knows
  Tune tune = Tune::start;
  bool is_free = false;
  std::vector<double> slow = {};  // by rank: its copies and sums take longer by this factor
  int slow_from = 0;              // ... from this step on
  bool moves_bytes = false;       // sums are made, and their bits compared
  bool canonical = false;         // RDMACOLL_ORDER
  std::string algorithm = {};     // a forced algorithm, or ""
};

struct NodeJobResult {
  std::string error;                             // "": none
  std::vector<double> step_us;                   // by step; of a free job: rank 0's
  std::vector<double> least_us;                  // by step, of a free job: rank 0's shortest sum
  std::vector<std::vector<Movement>> movements;  // by step: of its decisions
  int steps_before_plan = 0;                     // all steps if no plan has begun
  std::vector<int> trying_writes;                // by step: jobs that may write past the caches
  bool is_equal = true;                          // all ranks and steps have the same bits
  bool is_canonical = true;                      // ... those of the canonical order
};

NodeJobResult run_node_job(const NodeJob& job);

}  // namespace rdmacoll
