// The cost of moving and combining bytes: the numbers of LogGP, one set within a node and one
// between nodes. Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages
// into the LogP model", 1995.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rdmacoll {

struct Link {
  double latency_us = 0;    // L: from port to port
  double overhead_us = 0;   // o: processor time, at each end of each transfer
  double gap_us = 0;        // g: the least time from one transfer to the next at a port
  double bytes_per_us = 1;  // 1/G: rate of a port, in each direction

  bool operator==(const Link&) const = default;
};

// Rates of one kind of work on memory, in bytes per microsecond.
struct MemoryRate {
  double cached = 1;      // one rank, on data in its caches
  double beyond = 1;      // one rank, on data that no cache has, while the others are idle
  double beyond_all = 1;  // such data, all ranks of the node together
  double shared = 1;      // one rank, on data in NodeMemory's shared cache

  // The rate beyond the caches of one of `ranks` that all work at once.
  double shared_by(int ranks) const { return std::min(beyond, beyond_all / std::max(1, ranks)); }
  MemoryRate divided_by(double ranks) const {
    return {cached / ranks, beyond / ranks, beyond_all, shared / ranks};
  }
  bool operator==(const MemoryRate&) const = default;
};

// The cost of moving and adding data within a node. A profile may measure all of this at the start.
// So only choices among algorithms that add in the same order may depend on it.
//
// Usual figures: AMD EPYC, two ranks whose cores share a third-level cache. Calibrated from
// docs/measurements/2026-11-25-measured-otherwise.md and 2026-11-28-trials.md.
struct NodeMemory {
  static constexpr double kBytesOfLine = 64;
  double round_us = 0.4;     // from the post of a message to the peer that waits for it
  double lines_us = 0.098;   // the part of it in which cache lines cross from core to core
  double message_us = 0.02;  // processor time to post a message, and to take one
  // Data of a segment up to here goes in the messages. More is shown to the peer, which then
  // releases it. `view_us`: the processor time of both, at each end, beside the message.
  uint64_t data_bytes = 4096;
  double view_us = 0.05;
  double step_us = 0.08;    // fixed processor time of any copy or sum, beside its bytes
  double line_us = 0.0003;  // one cache line of 64 bytes out of another rank's cache, in a row
  uint64_t cache_bytes = 1 << 20;  // data of a rank up to here stays in a cache of its own
  // The cache that the ranks of so many cores share at most. 0: there is none, or its rate is not
  // known. It keeps a rank's own data that has left the cache of its core.
  uint64_t shared_cache_bytes = 0;
  int shared_cache_ranks = 1;
  MemoryRate copy{.cached = 75'000, .beyond = 24'000, .beyond_all = 192'000, .shared = 38'000};
  // For each source but the first.
  MemoryRate reduce{.cached = 51'000, .beyond = 16'000, .beyond_all = 128'000, .shared = 25'500};
  // A copy to a lent slot (DataLocation::lent) in a rank's caches. It hardly waits for lines of
  // peers.
  double lent_bytes_per_us = 75'000;
  // One-copy reads of a peer's memory by the kernel (process_vm_readv).
  double read_call_us = 0.5;          // for each call
  double read_page_us = 0.17;         // for each page of 4 KiB, beside its bytes
  double read_bytes_per_us = 75'000;  // at most; no copy is faster than `copy`
  double cores = 0;      // the cores of which the node's ranks have the use; 0: one for each
  double switch_us = 1;  // until a core goes from one waiting rank to the next
  // The time in which the other ranks of a rank's core have their turn, one after the other. A
  // result of on_cores().
  double turns_us = 0;

  bool shares_core() const { return turns_us > 0; }
  // Whether data is shown to the peer, and not in the message, if segments have so many bytes.
  bool shows(double segment_bytes) const { return segment_bytes > static_cast<double>(data_bytes); }
  // Processor time of a message about `bytes`, at each end, if segments have so many bytes. Data in
  // a message is copied to its record, and from there. Each end takes the record's lines out of the
  // other's cache.
  double message_us_of(double segment_bytes, double bytes) const {
    if (shows(segment_bytes)) return message_us + view_us;
    return message_us + bytes / copy.cached + bytes / kBytesOfLine * line_us;
  }
  // From the post of a message to the peer that waits for it. On a shared core the others have
  // their turn meanwhile. Peers read shown data in their turn, and the owner learns of it in its
  // next one: two turns, and the way of this news.
  double round_us_of(double segment_bytes) const {
    if (shows(segment_bytes)) return round_us + 2 * turns_us;
    return std::max(round_us, turns_us);
  }
  // How many ranks share a core.
  double ranks_of_core(int ranks) const {
    return cores == 0 ? 1 : std::max(1.0, static_cast<double>(ranks) / cores);
  }
  // The costs of one rank that works while the others of its core wait for it. A rank with a core
  // of its own waits while both ends work on a message. On a shared core this work takes time of
  // the core, a half at each end. The writer's stores do not wait for their lines, so the half of
  // the lines is work. It is none between ranks of one core.
  NodeMemory in_turns(int ranks) const {
    NodeMemory each = *this;
    each.cores = 0;
    const double share = ranks_of_core(ranks);
    if (share <= 1) return each;
    each.turns_us = switch_us * (share - 1);
    // The part of a rank's peers that are on its core.
    const double near = std::min(1.0, (share - 1) / std::max(1, ranks - 1));
    each.message_us += (round_us - (1 + near) / 2 * lines_us) / 2;
    return each;
  }
  // All work takes so many times as long.
  NodeMemory slowed_by(double times) const {
    NodeMemory each = *this;
    for (double* time : {&each.message_us, &each.view_us, &each.step_us, &each.line_us,
                         &each.read_call_us, &each.read_page_us}) {
      *time *= times;
    }
    each.copy = copy.divided_by(times);
    each.reduce = reduce.divided_by(times);
    each.lent_bytes_per_us /= times;
    each.read_bytes_per_us /= times;
    return each;
  }
  // The costs for so many ranks at once, each with a core of its own in the result. Ranks that
  // share a core take turns, so the work of each takes longer.
  NodeMemory on_cores(int ranks) const { return in_turns(ranks).slowed_by(ranks_of_core(ranks)); }
  bool operator==(const NodeMemory&) const = default;
};

// Ranks of one node share its two ports to the network, one out and one in. Nodes may stand in
// racks, which also share their ways to other racks.
//
// Costs within a single node follow from `memory` alone. Costs between nodes follow from all other
// numbers, and never from `memory`: the order of additions between nodes may not depend on a
// measurement, since equal runs must have equal bits.
struct LinkModel {
  Link node;  // within a node, if there are several nodes
  Link network;
  int rack_nodes = 0;              // 0: all nodes are in one rack
  double uplink_bytes_per_us = 1;  // rate of a rack's uplink, in each direction
  uint64_t eager_bytes = 0;        // transfers between nodes up to here go without a grant
  bool via_nic = false;            // the network accesses pinned memory only (RDMA)
  double step_us = 0;              // fixed cost of any copy or reduction, beside its bytes
  double copy_bytes_per_us = 1;
  double reduce_bytes_per_us = 1;  // for each source but the first
  NodeMemory memory = {};
};

// Usual figures: a node of today, and its links to other nodes, by device or by socket.
inline constexpr Link kNodeLink{.latency_us = 0.3, .overhead_us = 0.2, .bytes_per_us = 10'000};
inline constexpr LinkModel kNicLinks{
    .node = kNodeLink,
    .network = {.latency_us = 1.2, .overhead_us = 0.3, .gap_us = 0.1, .bytes_per_us = 12'000},
    .eager_bytes = 8 << 10,
    .via_nic = true,
    .step_us = 0.1,
    .copy_bytes_per_us = 12'000,
    .reduce_bytes_per_us = 8'000};
inline constexpr double kNicLinksGbit = 100;
inline constexpr LinkModel kSocketLinks{
    .node = kNodeLink,
    .network = {.latency_us = 15, .overhead_us = 4, .gap_us = 1, .bytes_per_us = 1'150},
    .eager_bytes = 64 << 10,
    .step_us = 0.1,
    .copy_bytes_per_us = 12'000,
    .reduce_bytes_per_us = 8'000};
inline constexpr double kSocketLinksGbit = 10;

// The usual links. `via_nic`: as TransportProvider::via_nic(). `gbit`: the rate of a
// node's port in Gbit/s; 0: the usual one.
inline LinkModel usual_links(bool via_nic, double gbit = 0) {
  LinkModel links = via_nic ? kNicLinks : kSocketLinks;
  if (gbit > 0) {
    links.network.bytes_per_us *= gbit / (via_nic ? kNicLinksGbit : kSocketLinksGbit);
  }
  return links;
}

}  // namespace rdmacoll
