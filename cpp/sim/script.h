// The program and the fault of one simulation: a pure function of the seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "memory/gpu_memory_facts.h"
#include "operation/operation.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

struct SimOperation {
  Kind kind = Kind::allreduce;
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::size_t set = 0;  // the process set, whose ranks are used below; 0: the world
  std::string name;     // "" for an unnamed operation
  // `shapes` omit the first dimension if it may differ. `rows` has it instead: by rank, the rows of
  // each tensor, or the rows for each rank.
  std::vector<std::vector<int64_t>> shapes;
  std::vector<std::vector<int64_t>> rows;
  double prescale = 1.0;
  // The number of ranks that have data, counted cyclically from `first_giver`. The other ranks have
  // joined, or are about to. 0: all ranks.
  int givers = 0;
  int first_giver = 0;

  bool is_given_by(int rank, int of) const {
    return givers == 0 || (rank - first_giver + of) % of < givers;
  }
  // Whether the operation fails because ranks that have joined cannot take part with zeros.
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
  cut,     // the connection of two ranks breaks, as if a control message were lost
  unplug,  // a rank sends and receives nothing any more
  mismatch,
  missing,
  leave,
  exhaust,  // the pool of a rank has no memory from the beginning
  dry,      // the pool of a rank runs out of memory
  refuse,   // the allocation of a result fails
  late,     // control messages of the previous world arrive
};

// A change of process sets on all ranks, before the operations of `phase`. All ranks have ended the
// phases before. They begin no later phase until all have made the change.
struct SimSetChange {
  std::size_t phase = 0;
  std::size_t set = 0;
  bool is_removed = false;  // false: added
};

// The ranks whose tensors are in memory of GPUs.
enum class GpuUse : uint8_t {
  none,
  all,
  one_rank,  // the last rank
  some,      // each rank has some of its operations there
};

// NICs that access memory of GPUs.
struct SimDirect {
  GpuWays ways;
  WriteFlush flush = WriteFlush::none;
  uint64_t bar1_bytes = 0;  // for each GPU
  double refused = 0;       // share of registrations that fail
};

// Ranks of a node that read memory of each other's GPUs (CUDA IPC).
struct SimIpc {
  bool is_on = false;
  bool shares_arrays = false;  // callers' arrays, too
  uint64_t slab_bytes = 0;
  uint64_t bytes_min = 0;  // smaller batches are staged
  double refused = 0;      // share of slabs that a peer cannot open
};

struct SimScript {
  int ranks = 1;    // ranks with data
  int servers = 0;  // servers in addition
  SimPolicy network;
  std::string algorithm;  // a forced algorithm, or ""
  bool canonical = false;
  uint64_t segment_bytes = 0;
  uint64_t pool_bytes = 64 << 20;
  bool slow_compute = false;
  GpuUse gpus = GpuUse::none;
  // Operations on GPUs end when their work is enqueued. Without GPUs all operations do, as if GPUs
  // shared the memory of the host, and read that of peers.
  bool records_ends = false;
  // Some pieces of work on GPUs take up to this much longer than the others, as behind kernels of
  // the program.
  Nanoseconds gpu_delay_max = 0;
  SimDirect direct;
  SimIpc ipc;
  bool shares_results = false;  // for allreduce, if all ranks are on one node
  bool tries_ways = false;      // sums within a node, as in Trials
  bool looks_again = false;     // ... and in plans, as in Drift
  uint64_t plan_repeats = 0;
  std::vector<std::vector<int>> sets;  // process sets other than the world, numbered from 1
  std::size_t first_sets = 0;          // sets that exist from the beginning
  std::vector<SimSetChange> changes;   // in order
  // The operations of a phase are submitted together. Those with a name may come in any order. Then
  // all are awaited.
  std::vector<std::vector<SimOperation>> phases;
  Fault fault = Fault::none;
  int victim = 0;
  int partner = 0;           // cut: the other end of the connection
  Nanoseconds fault_at = 0;  // kill, nap, stop, cut, unplug, dry
  Nanoseconds pause = 0;     // nap, stop
  // This rank is suspended within a job, once, for `sleep`. -1: none. Peers may fail meanwhile.
  int sleeper = -1;
  Nanoseconds sleep_at = 0;  // the first job after that
  Nanoseconds sleep = 0;
  std::size_t fault_phase = 0;  // mismatch, missing, leave, refuse
  std::size_t fault_operation = 0;
  uint32_t epoch = 7;
  int late_messages = 0;  // number of control messages of this world that reach the next one

  // The next world: the same processes and program, without another fault.
  SimScript next_world() const;
  int members() const { return ranks + servers; }
  // The set's rank of a rank, or -1 if the set does not contain it.
  int rank_in(std::size_t set, int rank) const;
  int ranks_of(std::size_t set) const;
  // Whether the tensors of a rank's operation with this index in a phase are in memory of a GPU.
  bool is_on_gpu(int rank, std::size_t index) const;
  // inserts phases
  void insert(std::size_t at, const std::vector<std::vector<SimOperation>>& more);
  // Whether other ranks may give up on a rank because they do not hear from it.
  bool stops_a_rank() const {
    return fault == Fault::nap || fault == Fault::stop || fault == Fault::unplug;
  }
  // Whether the fault hits a rank, and not an operation.
  bool hits_a_rank() const {
    return fault == Fault::kill || fault == Fault::cut || fault == Fault::exhaust ||
           fault == Fault::dry || stops_a_rank();
  }
  std::string fault_text() const;
  std::string text() const;
};

SimScript make_script(uint64_t seed);
// Lets NICs access the memory of GPUs. Each rank, or each two, are a node.
void make_direct(uint64_t seed, SimScript& script);
// Lets ranks of a node read memory of each other's GPUs.
void make_ipc(uint64_t seed, SimScript& script);
// Lets pieces of work on GPUs take longer than the news of a failure, and than a leaving rank
// waits.
void make_delays(uint64_t seed, SimScript& script);

}  // namespace rdmacoll
