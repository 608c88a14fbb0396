#include "collectives/choose.h"

namespace rdmacoll {
namespace {

uint64_t segment_bytes(const Tuning& tuning, const Facts& facts) {
  if (facts.segment_bytes) return *facts.segment_bytes;
  return facts.one_node ? tuning.segment_bytes_shared : tuning.segment_bytes_network;
}

uint64_t reduced_segment_bytes(const Tuning& tuning, const Facts& facts) {
  const bool is_packed = facts.one_node && facts.bytes > tuning.whole_bytes_shared &&
                         facts.bytes < tuning.one_copy_bytes;
  return is_packed ? facts.segment_bytes.value_or(tuning.packed_segment_bytes_shared)
                   : segment_bytes(tuning, facts);
}

// In canonical order, 16-bit floats stay float32 until the root of the tree: only an algorithm that
// reduces once, where all sources meet, can do that.
bool rounds_too_early(const Facts& facts, Algorithm algorithm) {
  return facts.canonical && is_16_bit_float(facts.dtype) && algorithm != Algorithm::direct;
}

Algorithm by_size(const Tuning& tuning, const Facts& facts) {
  // Partial sums of 16-bit floats are rounded on the way, and may overflow before they are divided.
  const bool doubles = !is_16_bit_float(facts.dtype) || facts.ranks <= 2;
  if (facts.one_node) {
    return doubles && facts.bytes <= tuning.doubling_bytes_shared ? Algorithm::recursive_doubling
                                                                  : Algorithm::direct;
  }
  if (doubles && facts.bytes <= tuning.doubling_bytes_network) {
    return Algorithm::recursive_doubling;
  }
  const bool few = facts.ranks <= tuning.direct_ranks_network;
  if (facts.canonical || (few && facts.bytes <= tuning.direct_bytes_network)) {
    return Algorithm::direct;
  }
  return Algorithm::ring;
}

}  // namespace

Choice choose_allreduce(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  Algorithm algorithm = facts.forced ? *facts.forced : by_size(tuning, facts);
  if (rounds_too_early(facts, algorithm)) algorithm = Algorithm::direct;
  return {algorithm, reduced_segment_bytes(tuning, facts)};
}

Choice choose_broadcast(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  // Segments follow one another down the tree, so they are shorter than those of a sum.
  const uint64_t segment = facts.segment_bytes.value_or(segment_bytes(tuning, facts) / 4);
  const bool is_large =
      !facts.one_node && facts.ranks > 2 && facts.bytes > tuning.binomial_bytes_network;
  return {is_large ? Algorithm::pipelined_tree : Algorithm::binomial_broadcast, segment};
}

Choice choose_allgather(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  const bool is_small = !facts.one_node && facts.bytes <= tuning.gather_bytes_network;
  return {is_small ? Algorithm::doubling_allgather : Algorithm::ring_allgather,
          segment_bytes(tuning, facts)};
}

}  // namespace rdmacoll
