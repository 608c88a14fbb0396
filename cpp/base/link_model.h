// What it costs to move and to combine bytes: the numbers of LogGP, one set within a node and one
// between nodes. Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages
// into the LogP model", 1995.
#pragma once

namespace rdmacoll {

struct Link {
  double latency_us = 0;    // L: from port to port
  double overhead_us = 0;   // o: of the processor, at each end of each transfer
  double gap_us = 0;        // g: from one transfer to the next at a port, at least
  double bytes_per_us = 1;  // 1/G: of a port, in each direction

  bool operator==(const Link&) const = default;
};

// Ranks of one node share the ports of the network: one way out and one in. Within a node each rank
// has ports of its own; that its ranks share the memory's bandwidth is not modelled. Nodes may
// stand in racks, whose ways to other racks they share as well.
struct LinkModel {
  Link node;
  Link network;
  int rack_nodes = 0;              // 0: all nodes are in one
  double uplink_bytes_per_us = 1;  // of a rack, in each direction
  uint64_t eager_bytes = 0;        // transfers between nodes up to here go without a grant
  bool is_by_device = false;       // the network reads and writes pinned memory alone (RDMA)
  double step_us = 0;              // what any copy or reduction costs beside its bytes
  double copy_bytes_per_us = 1;
  double reduce_bytes_per_us = 1;  // of each source but the first
};

// Usual figures, to reason with: a node of today, and what joins it to others.
inline constexpr Link kNodeLink{.latency_us = 0.3, .overhead_us = 0.2, .bytes_per_us = 10'000};
inline constexpr LinkModel kRdmaLinks{
    .node = kNodeLink,
    .network = {.latency_us = 1.2, .overhead_us = 0.3, .gap_us = 0.1, .bytes_per_us = 12'000},
    .eager_bytes = 8 << 10,
    .is_by_device = true,
    .step_us = 0.1,
    .copy_bytes_per_us = 12'000,
    .reduce_bytes_per_us = 8'000};
inline constexpr double kRdmaLinksGbit = 100;
inline constexpr LinkModel kTcpLinks{
    .node = kNodeLink,
    .network = {.latency_us = 15, .overhead_us = 4, .gap_us = 1, .bytes_per_us = 1'150},
    .eager_bytes = 64 << 10,
    .step_us = 0.1,
    .copy_bytes_per_us = 12'000,
    .reduce_bytes_per_us = 8'000};
inline constexpr double kTcpLinksGbit = 10;

// The usual links of a kind, where a node's port carries so many Gbit/s.
inline LinkModel usual_links(bool is_by_device, double gbit) {
  LinkModel links = is_by_device ? kRdmaLinks : kTcpLinks;
  links.network.bytes_per_us *= gbit / (is_by_device ? kRdmaLinksGbit : kTcpLinksGbit);
  return links;
}

}  // namespace rdmacoll
