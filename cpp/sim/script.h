// What the ranks of one simulation do, and what goes wrong: a pure function of the seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "operation/operation.h"
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
  // How many ranks of the set, the first ones after `first_giver` in a circle, have data for it;
  // the others have joined, or are about to. 0: all.
  int givers = 0;
  int first_giver = 0;

  bool is_given_by(int rank, int of) const {
    return givers == 0 || (rank - first_giver + of) % of < givers;
  }
  // Ranks that have joined have no zeros for it.
  bool is_refused(int of) const {
    const bool adds = op == ReduceOp::sum || op == ReduceOp::average;
    const bool takes_zeros = kind == Kind::barrier || (kind == Kind::allreduce && adds);
    return givers > 0 && givers < of && !takes_zeros;
  }
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
  late,     // control messages of the world before arrive
};

// On all ranks, before what `phase` has: every rank has ended what comes before, and begins nothing
// that comes after before all have made it.
struct SimSetChange {
  std::size_t phase = 0;
  std::size_t set = 0;
  bool is_removed = false;  // or added
};

struct SimScript {
  int ranks = 1;    // that have data
  int servers = 0;  // beside them
  SimPolicy network;
  std::string algorithm;  // forced, or ""
  bool canonical = false;
  uint64_t segment_bytes = 0;
  uint64_t pool_bytes = 64 << 20;
  bool slow_compute = false;
  bool shares_results = false;  // of allreduces, where all ranks are of one node
  uint64_t plan_repeats = 0;
  std::vector<std::vector<int>> sets;  // beside the world: their numbers begin at 1
  std::size_t first_sets = 0;          // that are there from the beginning; the others come later
  std::vector<SimSetChange> changes;   // in order
  // All operations of a phase are submitted at once, the named in any order; then all are awaited.
  std::vector<std::vector<SimOperation>> phases;
  Fault fault = Fault::none;
  int victim = 0;
  int partner = 0;              // cut: the other end
  Nanoseconds fault_at = 0;     // kill, nap, stop, cut, unplug, dry
  Nanoseconds pause = 0;        // nap, stop
  std::size_t fault_phase = 0;  // mismatch, missing, leave, refuse
  std::size_t fault_operation = 0;
  uint32_t epoch = 7;
  int late_words = 0;  // so many control messages of this world reach the next one

  // The next one: the same processes, the same program, and nothing else goes wrong.
  SimScript begun_again() const;
  int members() const { return ranks + servers; }
  // What a set calls a rank; -1: it is not in it.
  int rank_in(std::size_t set, int rank) const;
  int ranks_of(std::size_t set) const;
  void insert(std::size_t at, const std::vector<std::vector<SimOperation>>& more);  // phases
  // Others do not hear of a rank for a while, or for ever, and may give it up.
  bool stops_a_rank() const {
    return fault == Fault::nap || fault == Fault::stop || fault == Fault::unplug;
  }
  // The fault is of a rank, and not of what it submits.
  bool strikes_a_rank() const {
    return fault == Fault::kill || fault == Fault::cut || fault == Fault::exhaust ||
           fault == Fault::dry || stops_a_rank();
  }
  std::string fault_text() const;
  std::string text() const;
};

SimScript make_script(uint64_t seed);

}  // namespace rdmacoll
