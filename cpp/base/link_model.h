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
};

// Ranks of one node share the ports of the network: one way out and one in. Within a node each rank
// has ports of its own; that its ranks share the memory's bandwidth is not modelled.
struct LinkModel {
  Link node;
  Link network;
  bool is_by_device = false;  // the network reads and writes pinned memory alone (RDMA)
  double step_us = 0;         // what any copy or reduction costs beside its bytes
  double copy_bytes_per_us = 1;
  double reduce_bytes_per_us = 1;  // of each source but the first
};

}  // namespace rdmacoll
