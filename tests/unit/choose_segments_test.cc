// The lengths of segments within a node, and which collectives read in place.
#include <gtest/gtest.h>

#include <algorithm>

#include "algorithm_names.h"
#include "collectives/choose.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

TEST(ChoiceOfSegments, within_a_node_stages_an_exchange_in_segments_that_stay_in_the_caches) {
  const Tuning tuning;
  for (const int ranks : {2, 4}) {
    for (uint64_t bytes = 1 << 10; bytes <= 1u << 30; bytes *= 2) {
      Facts facts{.ranks = ranks, .bytes = bytes};
      facts.in_place = tuning.reads_in_place(Result::exchange, bytes);
      EXPECT_EQ(facts.in_place, bytes >= 32 << 20);
      const bool is_cut = bytes > tuning.links.memory.cache_bytes && !facts.in_place;
      EXPECT_EQ(segment_bytes_of(named::pairwise_alltoall, tuning, facts),
                is_cut ? ranks * tuning.links.memory.cache_bytes / 8 : tuning.segment_bytes_shared);
      EXPECT_EQ(tuning.reads_in_place(Result::own_value, bytes), bytes >= 4 << 20);
    }
  }
}

TEST(ChoiceOfSegments, within_a_node_cuts_data_that_is_staged_from_gpus_into_longer_segments) {
  const Tuning tuning;
  for (uint64_t bytes = 1 << 10; bytes <= 1u << 30; bytes *= 2) {
    Facts facts{.ranks = 2, .bytes = bytes};
    const uint64_t on_host = segment_bytes_of(named::binomial_broadcast, tuning, facts);
    facts.stages_gpus = true;
    const uint64_t staged = segment_bytes_of(named::binomial_broadcast, tuning, facts);
    EXPECT_GE(staged, on_host);
    if (bytes >= 4 * on_host) {
      EXPECT_EQ(staged, std::min(bytes / kSegmentsInFlight, tuning.segment_bytes_shared));
    }
    facts.segment_bytes = 12345;
    EXPECT_EQ(segment_bytes_of(named::binomial_broadcast, tuning, facts), 12345u);
  }
}

}  // namespace
}  // namespace rdmacoll
