#include "collectives/node_cost.h"

#include <algorithm>
#include <cmath>

#include "collectives/schedule.h"

namespace rdmacoll {
namespace {

constexpr double kBytesOfPage = 4096;

// Data that is used in turns leaves a cache of many ways before it fills it.
constexpr double kUsedShare = 0.5;

// How much of the ranks' data lies in the cache that they share: `bytes` of each rank in the
// caller's memory. The segments in flight in its pool pass through that cache as well.
double share_in_shared(const NodeMemory& memory, int ranks, double bytes, double pool_bytes) {
  const double most = kUsedShare * static_cast<double>(memory.shared_cache_bytes);
  const double used = (bytes + pool_bytes) * std::min(ranks, memory.shared_cache_ranks);
  return std::min(1.0, most / std::max(1.0, used));
}

double share_beyond(double bytes, uint64_t cache_bytes) {
  const auto cached = static_cast<double>(cache_bytes);
  return bytes <= cached ? 0 : 1 - cached / bytes;
}

}  // namespace

int processors_of(const NodeMemory& memory, int ranks) {
  return memory.cores == 0 ? ranks : std::min(ranks, static_cast<int>(std::ceil(memory.cores)));
}

NodeMemory memory_in_turns(const NodeMemory& memory, int ranks) {
  const double share = memory.ranks_of_core(ranks);
  // A quota may leave a part of the last core.
  const double slower = share * processors_of(memory, ranks) / ranks;
  NodeMemory each = memory.in_turns(ranks).slowed_by(slower);
  each.cache_bytes = static_cast<uint64_t>(static_cast<double>(memory.cache_bytes) / share);
  each.shared_cache_ranks = static_cast<int>(std::ceil(memory.shared_cache_ranks * share));
  return each;
}

NodeMemory memory_of_each(const NodeMemory& memory, int ranks) {
  const double at_once = processors_of(memory, ranks);
  return memory_in_turns(memory, ranks).slowed_by(ranks / at_once);
}

// All that a rank packs in the segments in flight passes through its cache. The length of segments
// keeps only its own part of the sums there (choose.cc).
NodeCost::NodeCost(const NodeMemory& memory, int ranks, int at_once, double bytes,
                   double segment_bytes)
    : memory_(memory),
      at_once_(at_once),
      pool_bytes_(std::min(bytes, kSegmentsInFlight * segment_bytes)),
      caller_beyond_(share_beyond(bytes, memory.cache_bytes)),
      pool_beyond_(share_beyond(pool_bytes_, memory.cache_bytes)),
      in_shared_(share_in_shared(memory, ranks, bytes, pool_bytes_)) {}

double NodeCost::beyond(DataLocation location) const {
  return location == DataLocation::caller || location == DataLocation::peer_caller ? caller_beyond_
                                                                                   : pool_beyond_;
}

double NodeCost::byte_us(const MemoryRate& rate, double share) const {
  return byte_us(rate, rate.cached, share);
}

double NodeCost::byte_us(const MemoryRate& rate, double cached_rate, double share) const {
  const double cached = (1 - share) / cached_rate;
  if (share == 0) return cached;
  const double shared = in_shared_ == 0 ? 0 : in_shared_ / rate.shared;
  return cached + share * (shared + (1 - in_shared_) / rate.shared_by(at_once_));
}

double NodeCost::read_us(double bytes, double share) const {
  const double pages = std::ceil(bytes / kBytesOfPage);
  const double each = std::max(byte_us(memory_.copy, share), 1 / memory_.read_bytes_per_us);
  return memory_.read_call_us + pages * memory_.read_page_us + bytes * each;
}

double NodeCost::copy_us(double bytes, DataLocation from, DataLocation to) const {
  const double share = (beyond(from) + beyond(to)) / 2;
  if (from == DataLocation::peer_caller) return memory_.step_us + read_us(bytes, share);
  const double rate = to == DataLocation::lent ? memory_.lent_bytes_per_us : memory_.copy.cached;
  const double copied = bytes * byte_us(memory_.copy, rate, share);
  return memory_.step_us +
         (from == DataLocation::peer_pool ? std::max(copied, handed_us(bytes)) : copied);
}

// The kernel reads a peer's memory into a cache first.
double NodeCost::reduce_us(double bytes, DataLocation own, DataLocation peer, int peers,
                           DataLocation to) const {
  const bool is_read = peer == DataLocation::peer_caller;
  const double of_peers = is_read ? 0 : beyond(peer);
  const double share = (beyond(own) + of_peers * peers + beyond(to)) / (peers + 2);
  const double added = bytes * peers * byte_us(memory_.reduce, share);
  const double handed = peer == DataLocation::peer_pool ? peers * handed_us(bytes) : 0;
  const double read = is_read ? peers * read_us(bytes, caller_beyond_ / 2) : 0;
  return memory_.step_us + read + std::max(added, handed);
}

double NodeCost::handed_us(double bytes) const {
  return bytes / NodeMemory::kBytesOfLine * memory_.line_us;
}

}  // namespace rdmacoll
