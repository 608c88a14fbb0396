// The simulator. Real engines are stepped in one thread under a virtual clock. The network delays,
// refuses, reorders, breaks and stops transfers as a seed determines. A failing seed is a complete
// bug report.
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
  std::string hang;       // the state of ranks that do not end, or ""
  std::string wrong;      // a wrong sum
  std::string unnamed;    // an error that does not match the fault, in its code or rank
  std::string overslept;  // a rank that slept although it had work: a lost wake-up

  uint64_t plans = 0;   // totals of all ranks: as in SetTotals
  uint64_t shared = 0;  // sums with results that a node shares
  uint64_t plans_left = 0;
  uint64_t caught_up = 0;
  uint64_t replayed = 0;
  uint64_t refused = 0;      // ranks whose world ended by a message of the previous world
  uint64_t direct_sent = 0;  // bytes of GPUs that NICs moved, and what they did for that
  uint64_t direct_received = 0;
  uint64_t flushes = 0;
  uint64_t evictions = 0;
  uint64_t freed = 0;                          // registrations of memory that was freed
  uint64_t refusals = 0;                       // memory that could not be pinned
  uint64_t on_gpus = 0;                        // allocations of work memory that peers read there
  uint64_t early_ends = 0;                     // operations that ended before their work on a GPU
  uint64_t failed = 0;                         // ranks whose world ended by an error
  std::map<std::size_t, int64_t> last_joined;  // by phase: the result of join()
  std::vector<Status> failures;                // by rank: the failure of its world, or ok()

  bool ok() const { return hang.empty() && wrong.empty() && unnamed.empty() && overslept.empty(); }
};

struct SimScript;
// `is_printed`: prints the trace of the simulation.
SimOutcome simulate(uint64_t seed, bool is_printed = false);
SimOutcome simulate(const SimScript& script, bool is_printed = false);

}  // namespace rdmacoll
