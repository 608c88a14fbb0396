// The time that a rank's work on memory takes within a node. cost_of() and the rows of algorithms
// use the same formulas. Pure.
#pragma once

#include <cstdint>

#include "base/link_model.h"

namespace rdmacoll {

// The location of the data of a copy or sum.
enum class DataLocation : uint8_t {
  caller,       // this rank's caller's memory
  pool,         // this rank's pool
  peer_pool,    // the pool of a peer, which this rank reads
  peer_caller,  // the caller's memory of a peer, which the kernel reads for this rank
  lent,         // a slot that two ranks write in turn, each after it has read what was there
};

// The processors on which so many ranks run: a core for each, or the cores that they share.
int processors_of(const NodeMemory& memory, int ranks);

// The costs of one of so many ranks, on a processor that the others leave to it. Ranks that share a
// core take turns (NodeMemory::in_turns), and each has a part of the core's cache and of the shared
// one.
NodeMemory memory_in_turns(const NodeMemory& memory, int ranks);

// The same if all ranks work at once. Each has a processor of its own in the result, which is
// slower the more ranks share a core.
NodeMemory memory_of_each(const NodeMemory& memory, int ranks);

class NodeCost {
 public:
  // `bytes`: each rank's data of the whole operation, which lies in callers' memory. A few segments
  // of `segment_bytes` pass through the pools at once. `at_once` of the ranks work at the same
  // time.
  NodeCost(const NodeMemory& memory, int ranks, int at_once, double bytes, double segment_bytes);

  double copy_us(double bytes, DataLocation from, DataLocation to) const;
  // The sum of own data and that of `peers` ranks.
  double reduce_us(double bytes, DataLocation own, DataLocation peer, int peers,
                   DataLocation to) const;
  // The time for which a rank's cache hands `bytes` to one reader. Readers wait for each other.
  double handed_us(double bytes) const;

 private:
  // How much of such data lies beyond a rank's own cache: from 0 to 1.
  double beyond(DataLocation location) const;
  // The time of each byte if `share` of the data lies beyond a rank's own cache.
  double byte_us(const MemoryRate& rate, double share) const;
  double byte_us(const MemoryRate& rate, double cached, double share) const;
  double read_us(double bytes, double share) const;

  const NodeMemory& memory_;
  int at_once_;
  double pool_bytes_;  // those of the segments in flight
  double caller_beyond_, pool_beyond_;
  double in_shared_;  // how much of the data lies in the shared cache
};

}  // namespace rdmacoll
