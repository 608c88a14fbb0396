// What the ranks of one simulation do, and what goes wrong: a pure function of the seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/operation.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

struct SimOperation {
  Kind kind = Kind::allreduce;
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::string name;                          // "": unnamed
  std::vector<std::vector<int64_t>> shapes;  // allgather: without the first dimension
  std::vector<int64_t> firsts;               // allgather: by rank
  double prescale = 1.0;
};

enum class Fault : uint8_t { none, kill, nap, stop, mismatch, missing, leave, exhaust };

struct SimScript {
  int ranks = 1;
  SimPolicy network;
  std::string algorithm;  // forced, or ""
  bool canonical = false;
  uint64_t segment_bytes = 0;
  bool slow_compute = false;
  uint64_t plan_repeats = 0;
  // All operations of a phase are submitted at once, the named in any order; then all are awaited.
  std::vector<std::vector<SimOperation>> phases;
  Fault fault = Fault::none;
  int victim = 0;
  Nanoseconds fault_at = 0;     // kill, nap, stop
  Nanoseconds pause = 0;        // nap, stop
  std::size_t fault_phase = 0;  // mismatch, missing, leave
  std::size_t fault_operation = 0;

  std::string text() const;
};

SimScript make_script(uint64_t seed);

// The value of element `i` of a rank's input, small enough to be exact in every dtype used.
int sim_input(const SimOperation& operation, int rank, int64_t i);
// What every rank must have there in the end (not for allgather).
double sim_result(const SimOperation& operation, int ranks, int64_t i);

}  // namespace rdmacoll
