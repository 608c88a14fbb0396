// Questions about the facts of an operation that the ranges of several algorithms share.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "collectives/choose.h"

namespace rdmacoll {

// Bytes of a rank. An exchange's parts are those that a rank gives and those that it gets.
inline double row_bytes_of_rank(AlgorithmRow::Result result, const Facts& facts) {
  const auto bytes = static_cast<double>(facts.bytes);
  return result == AlgorithmRow::Result::exchange ? 2 * bytes / facts.ranks : bytes;
}

inline double segments_of(double bytes, uint64_t segment_bytes) {
  return std::max(1.0, std::ceil(bytes / static_cast<double>(segment_bytes)));
}

inline bool is_power_of_two(const Facts& facts) {
  return std::has_single_bit(static_cast<unsigned>(facts.ranks));
}

// Whether partial sums travel that are longer than contributions and results. Two ranks send none.
// Algorithms that make each sum at one place do not send them either.
inline bool has_wide_partials(const Facts& facts) { return facts.wide_sums && facts.ranks > 2; }

// Bytes that a rank sends in each round of a tree after the first.
inline uint64_t partial_bytes(const Facts& facts) {
  return has_wide_partials(facts) ? facts.bytes * kWide : facts.bytes;
}

// Whether 16-bit floats are summed at one place, so that no partial sum travels. More ranks than
// `ranks_sharing` would send too much through the ports that they share.
inline bool meets_where_partials_are_wide(const Facts& facts, int ranks_sharing) {
  return has_wide_partials(facts) && (!facts.spread.shares_nodes || facts.ranks <= ranks_sharing);
}

// Whether an algorithm that sums each node by itself is ruled out by the canonical order.
inline bool breaks_order_by_node(const Facts& facts) {
  return facts.canonical && !facts.spread.is_canonical_by_node;
}

// Whether a sum may go around a ring: it adds in any order, and sends partial sums. If p is a power
// of two, halving and doubling takes no more time.
inline bool may_be_ring(const Facts& facts) {
  return !facts.canonical && !is_power_of_two(facts) && !has_wide_partials(facts);
}

// AMD EPYC, 2026-11-25: docs/measurements/2026-11-25-measured-otherwise.md.
inline std::string_view correction_of_one_round(const Tuning&, const Facts& facts, bool) {
  return facts.one_node ? ""
                        : "measured: between hosts, one round of so many messages is not faster "
                          "than two rounds";
}

}  // namespace rdmacoll
