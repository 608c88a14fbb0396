// The ports of a modelled network, and the times at which transfers get them. The cost model and
// the simulator share this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/link_model.h"

namespace rdmacoll {

class LinkPorts {
 public:
  // `nodes`: the node of each rank. Both arguments outlive this.
  LinkPorts(const LinkModel& links, std::span<const int> nodes) : links_(links), nodes_(nodes) {}

  bool is_near(int a, int b) const { return nodes_[a] == nodes_[b]; }
  const Link& link(int a, int b) const { return is_near(a, b) ? links_.node : links_.network; }

  // The number of ports that a transfer passes one after the other: the way out, the uplinks of
  // both racks if they differ, and the way in.
  int hops(int from, int to) const { return is_near(from, to) || rack(from) == rack(to) ? 2 : 4; }

  // The first byte of a transfer reaches a port at `time` (us), and leaves it when the port is
  // free. Returns the time at which it leaves. `last` becomes the time at which the last byte
  // leaves.
  double pass(int hop, int from, int to, double bytes, double time, double& last) {
    const Link& way = link(from, to);
    const bool is_uplink = hop > 0 && hop + 1 < hops(from, to);
    const double rate = is_uplink ? links_.uplink_bytes_per_us : way.bytes_per_us;
    double& free_from = port(hop, from, to);
    const double begins = std::max(time, free_from);
    free_from = begins + std::max(bytes / rate, is_uplink ? 0 : way.gap_us);
    // Bytes that come through a narrower port do not go on faster.
    last = begins + bytes / (hop == 0 ? rate : std::min(rate, narrowest(from, to)));
    return begins;
  }

 private:
  struct Port {
    double out = 0, in = 0;  // the time from which it is free
  };
  int rack(int rank) const { return links_.rack_nodes == 0 ? 0 : nodes_[rank] / links_.rack_nodes; }
  double narrowest(int from, int to) const {
    const double own = link(from, to).bytes_per_us;
    return hops(from, to) == 2 ? own : std::min(own, links_.uplink_bytes_per_us);
  }
  double& port(int hop, int from, int to) {
    const bool is_near = this->is_near(from, to);
    const int last = hops(from, to) - 1;
    if (hop == 0) return is_near ? of_ranks_[from].out : of_nodes_[nodes_[from]].out;
    if (hop == last) return is_near ? of_ranks_[to].in : of_nodes_[nodes_[to]].in;
    return hop == 1 ? of_racks_[rack(from)].out : of_racks_[rack(to)].in;
  }

  const LinkModel& links_;
  std::span<const int> nodes_;
  std::map<int, Port> of_ranks_, of_nodes_, of_racks_;
};

}  // namespace rdmacoll
