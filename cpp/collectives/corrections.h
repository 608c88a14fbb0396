// Measurements that contradict the cost model. AMD EPYC, 2026-11-25:
// docs/measurements/2026-11-25-measured-otherwise.md.
#pragma once

#include <string_view>

#include "collectives/choose.h"

namespace rdmacoll {

// A row's `correction` without a formula between nodes.
inline std::string_view correction_of_one_round(const Tuning&, const Facts& facts) {
  return facts.one_node ? ""
                        : "measured: between hosts, one round of so many messages is not faster "
                          "than two rounds";
}

// Whether a ring is faster than the model says: between a few hosts over TCP, if the data takes a
// port longer than this.
inline bool is_for_ring(const LinkModel& links, const Facts& facts) {
  constexpr int kHosts = 6;
  constexpr double kPortUs = 600;
  const bool may_be_ring = !facts.canonical && !facts.wide_sums;
  return !facts.one_node && !links.via_nic && may_be_ring && !facts.spread.shares_nodes &&
         facts.ranks <= kHosts &&
         static_cast<double>(facts.bytes) > kPortUs * links.network.bytes_per_us;
}

}  // namespace rdmacoll
