// The simulator: real engines, stepped in one thread under a virtual clock, on a network that
// delays, refuses, reorders, breaks, kills and stops as a seed says. A failing seed is the bug
// report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace rdmacoll {

struct SimOutcome {
  std::string scenario;   // "4 ranks, 7 phases, rank 2 is killed at 1.2 ms"
  std::string hang;       // who waits for what; "" is good
  std::string wrong;      // a sum that is not right
  std::string unnamed;    // an error of another kind, or that names another rank, than the fault
  std::string overslept;  // who slept with something to do: a wake-up that is lost

  uint64_t plans = 0;   // of all ranks: followed, left, decisions to catch up with, taken anew
  uint64_t shared = 0;  // sums with results that a node shares
  uint64_t plans_left = 0;
  uint64_t caught_up = 0;
  uint64_t anew = 0;
  uint64_t refused = 0;  // ranks whose world has ended by a word of the one before
  uint64_t failed = 0;   // ranks whose world has ended by an error
  std::map<std::size_t, int64_t> last_joined;  // by phase: what join() has said
  std::vector<Status> failures;                // by rank: what has ended its world, or ok()

  bool ok() const { return hang.empty() && wrong.empty() && unnamed.empty() && overslept.empty(); }
};

struct SimScript;
// `is_told`: what happens is printed.
SimOutcome simulate(uint64_t seed, bool is_told = false);
SimOutcome simulate(const SimScript& script, bool is_told = false);

}  // namespace rdmacoll
