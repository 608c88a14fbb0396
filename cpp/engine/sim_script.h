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
  std::size_t set = 0;  // of processes, whose ranks are meant below: 0, the world, or of the script
  std::string name;     // "": unnamed
  // Without the first dimension where it may differ; that comes from `rows`: by rank, what it gives
  // of each tensor, or to each rank.
  std::vector<std::vector<int64_t>> shapes;
  std::vector<std::vector<int64_t>> rows;
  double prescale = 1.0;
  // All ranks take part; `rows`, the root and the expected values (sim_values.cc) count them. What
  // is for some of them only gets its members here, and is drawn in make_operation().
};

enum class Fault : uint8_t {
  none,
  kill,
  nap,
  stop,
  cut,     // the connection of two ranks breaks, as when a control message is lost
  unplug,  // nothing comes from a rank or to it any more
  mismatch,
  missing,
  leave,
  exhaust,  // the pool of a rank has nothing from the beginning,
  dry,      // or from some time on
  refuse,   // there is no memory for a result
};

struct SimScript {
  int ranks = 1;
  SimPolicy network;
  std::string algorithm;  // forced, or ""
  bool canonical = false;
  uint64_t segment_bytes = 0;
  uint64_t pool_bytes = 64 << 20;
  bool slow_compute = false;
  uint64_t plan_repeats = 0;
  std::vector<std::vector<int>> sets;  // beside the world: their numbers begin at 1
  // All operations of a phase are submitted at once, the named in any order; then all are awaited.
  std::vector<std::vector<SimOperation>> phases;
  Fault fault = Fault::none;
  int victim = 0;
  int partner = 0;              // cut: the other end
  Nanoseconds fault_at = 0;     // kill, nap, stop, cut, unplug, dry
  Nanoseconds pause = 0;        // nap, stop
  std::size_t fault_phase = 0;  // mismatch, missing, leave, refuse
  std::size_t fault_operation = 0;

  // What a set calls a rank; -1: it is not in it.
  int rank_in(std::size_t set, int rank) const;
  int ranks_of(std::size_t set) const;
  // Others do not hear of a rank for a while, or for ever, and may give it up.
  bool stops_a_rank() const {
    return fault == Fault::nap || fault == Fault::stop || fault == Fault::unplug;
  }
  std::string fault_text() const;
  std::string text() const;
};

SimScript make_script(uint64_t seed);

}  // namespace rdmacoll
