// The terms of which a row's closed-form cost between nodes is made, if each node has one rank. All
// times are in microseconds. Pure.
#pragma once

#include <algorithm>
#include <bit>

#include "collectives/choose.h"
#include "collectives/schedule.h"

namespace rdmacoll {

class BetweenNodes {
 public:
  // `segment_bytes`: the length of a segment. The other arguments outlive this.
  BetweenNodes(const LinkModel& links, const Facts& facts, AlgorithmRow::Result result,
               uint64_t segment_bytes);

  int ranks() const { return facts_.ranks; }
  bool is_even() const { return facts_.is_even; }
  // ceil(log2 p), and floor(log2 p).
  int doublings() const { return std::bit_width(static_cast<unsigned>(ranks() - 1)); }
  int depth() const { return std::bit_width(static_cast<unsigned>(ranks())) - 1; }

  double segments() const { return segments_; }
  double segments_at_once() const { return std::min<double>(segments_, kSegmentsInFlight); }
  double segment() const { return segment_; }
  double part() const { return segment_ / ranks(); }

  // Processor time to post or to take so many messages, and the latency between that.
  double messages(int count) const { return links_.network.overhead_us * count; }
  double latency() const { return links_.network.latency_us; }
  // The time for which so many bytes occupy a port.
  double port(double bytes) const {
    return std::max(bytes / links_.network.bytes_per_us, links_.network.gap_us);
  }
  double message(double bytes) const { return messages(2) + latency() + port(bytes); }
  double copy(double bytes) const { return links_.step_us + bytes / links_.copy_bytes_per_us; }
  // A NIC sends from pinned memory, and receives there.
  double pin(double bytes) const { return links_.via_nic ? copy(bytes) : 0; }

 private:
  const LinkModel& links_;
  const Facts& facts_;
  double segments_, segment_;
};

}  // namespace rdmacoll
