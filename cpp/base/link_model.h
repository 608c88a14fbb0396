// The cost of moving and combining bytes: the numbers of LogGP, one set within a node and one
// between nodes. Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages
// into the LogP model", 1995.
#pragma once

namespace rdmacoll {

struct Link {
  double latency_us = 0;    // L: from port to port
  double overhead_us = 0;   // o: processor time, at each end of each transfer
  double gap_us = 0;        // g: the least time from one transfer to the next at a port
  double bytes_per_us = 1;  // 1/G: rate of a port, in each direction

  bool operator==(const Link&) const = default;
};

// Ranks of one node share its two ports to the network, one out and one in. Within a node each rank
// has its own ports; the shared bandwidth of memory is not modelled. Nodes may stand in racks,
// which also share their ways to other racks.
struct LinkModel {
  Link node;
  Link network;
  int rack_nodes = 0;              // 0: all nodes are in one rack
  double uplink_bytes_per_us = 1;  // rate of a rack's uplink, in each direction
  uint64_t eager_bytes = 0;        // transfers between nodes up to here go without a grant
  bool via_nic = false;            // the network accesses pinned memory only (RDMA)
  double step_us = 0;              // fixed cost of any copy or reduction, beside its bytes
  double copy_bytes_per_us = 1;
  double reduce_bytes_per_us = 1;  // for each source but the first
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
