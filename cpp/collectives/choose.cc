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

// So small that rounds cost more than bytes. But partial sums of 16-bit floats are rounded on the
// way, and may overflow before they are divided.
bool is_short(const Tuning& tuning, const Facts& facts) {
  if (is_16_bit_float(facts.dtype) && facts.ranks > 2) return false;
  return facts.bytes <=
         (facts.one_node ? tuning.doubling_bytes_shared : tuning.doubling_bytes_network);
}

// Else it goes round a ring.
bool is_direct(const Tuning& tuning, const Facts& facts) {
  const bool few = facts.ranks <= tuning.direct_ranks_network;
  return facts.one_node || facts.canonical || (few && facts.bytes <= tuning.direct_bytes_network);
}

Algorithm by_size(const Tuning& tuning, const Facts& facts) {
  if (is_short(tuning, facts)) return Algorithm::recursive_doubling;
  return is_direct(tuning, facts) ? Algorithm::direct : Algorithm::ring;
}

Choice moved(const Tuning& tuning, const Facts& facts, Algorithm algorithm) {
  if (facts.bytes == 0) return {};
  return {algorithm, segment_bytes(tuning, facts)};
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
  return {Algorithm::binomial_broadcast,
          facts.segment_bytes.value_or(segment_bytes(tuning, facts) / 4)};
}

Choice choose_allgather(const Tuning& tuning, const Facts& facts) {
  return moved(tuning, facts, Algorithm::ring_allgather);
}

Choice choose_reduce_scatter(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  return {
      is_direct(tuning, facts) ? Algorithm::direct_reduce_scatter : Algorithm::ring_reduce_scatter,
      reduced_segment_bytes(tuning, facts)};
}

Choice choose_alltoall(const Tuning& tuning, const Facts& facts) {
  return moved(tuning, facts, Algorithm::pairwise_alltoall);
}

Choice choose_reduce(const Tuning& tuning, const Facts& facts) {
  if (facts.bytes == 0) return {};
  const bool is_tree =
      is_short(tuning, facts) && !rounds_too_early(facts, Algorithm::binomial_reduce);
  return {is_tree ? Algorithm::binomial_reduce : Algorithm::direct_reduce,
          reduced_segment_bytes(tuning, facts)};
}

Choice choose_gather(const Tuning& tuning, const Facts& facts) {
  return moved(tuning, facts, Algorithm::direct_gather);
}

Choice choose_scatter(const Tuning& tuning, const Facts& facts) {
  return moved(tuning, facts, Algorithm::direct_scatter);
}

}  // namespace rdmacoll
