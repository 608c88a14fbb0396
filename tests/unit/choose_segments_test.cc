// The lengths of segments within a node, and which collectives read in place.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "algorithm_names.h"
#include "collectives/choose.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

TEST(ChoiceOfSegments, within_a_node_stages_an_exchange_in_segments_that_stay_in_the_caches) {
  const Tuning tuning;
  const uint64_t cached = tuning.links.memory.cache_bytes / (2 * kSegmentsInFlight);
  for (const uint64_t ranks : {2, 3, 4, 8}) {
    for (uint64_t bytes = 1 << 10; bytes <= 1u << 30; bytes *= 2) {
      Facts facts{.ranks = static_cast<int>(ranks), .bytes = bytes};
      facts.in_place = tuning.reads_in_place(Result::exchange, bytes);
      EXPECT_EQ(facts.in_place, bytes >= 32 << 20);
      const bool is_cut = bytes > tuning.links.memory.cache_bytes && !facts.in_place;
      EXPECT_EQ(segment_bytes_of(named::pairwise_alltoall, tuning, facts),
                is_cut ? std::max(ranks * cached, ranks * 4 * cached / (ranks - 1))
                       : tuning.segment_bytes_shared);
      EXPECT_EQ(tuning.reads_in_place(Result::own_value, bytes), bytes >= 4 << 20);
    }
  }
}

// A rank packs one part of a gather for one reader, and one of an allgather for all.
TEST(ChoiceOfSegments, within_a_node_cuts_a_gather_so_that_ranks_of_a_core_pack_twice_its_cache) {
  Tuning tuning;
  NodeMemory& memory = tuning.links.memory;
  for (const int cores : {2, 4}) {
    memory.cores = cores;
    for (const int ranks : {2, 4}) {
      const Facts facts{.ranks = ranks, .one_node = true, .bytes = 64 << 20};
      const uint64_t gathered = segment_bytes_of(named::direct_gather, tuning, facts);
      const uint64_t of_core = std::max(1, ranks / cores);
      EXPECT_EQ(of_core * kSegmentsInFlight * gathered / ranks, 2 * memory.cache_bytes);
      EXPECT_EQ(segment_bytes_of(named::direct_allgather, tuning, facts), gathered / 4 * of_core);
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

// Readers of a broadcast take a segment while the next one is packed. Ranks that take turns on a
// core would switch for each of them.
TEST(ChoiceOfSegments, within_a_node_cuts_a_broadcast_short_where_each_rank_has_a_core) {
  Tuning tuning;
  const uint64_t cached = tuning.links.memory.cache_bytes / (2 * kSegmentsInFlight);
  const auto segment = [&](uint64_t bytes, double cores) {
    tuning.links.memory.cores = cores;
    const Facts facts{.ranks = 4, .one_node = true, .bytes = bytes};
    return segment_bytes_of(named::flat_broadcast, tuning, facts);
  };
  for (const uint64_t bytes : {uint64_t{64} << 10, uint64_t{1} << 20, uint64_t{64} << 20}) {
    EXPECT_EQ(segment(bytes, 2), 4 * cached) << bytes;
  }
  uint64_t before = 0;
  for (uint64_t bytes = 4 << 10; bytes <= 64 << 20; bytes *= 2) {
    const uint64_t short_one = segment(bytes, 4);
    EXPECT_GE(short_one, before);
    EXPECT_LE(short_one, cached) << "all in flight lie in a half of the cache";
    before = short_one;
  }
  EXPECT_EQ(before, cached);
  EXPECT_GE(segment(128 << 10, 4) * 4, 128u << 10) << "not many more segments than stages";
  EXPECT_LT(segment(128 << 10, 4), 128u << 10) << "packed and read at once";
}

// 10 us and 55 GB/s, as measured on an H200.
constexpr CopyCosts kFast{10, 55'000};

uint64_t staged_segment(uint64_t bytes, const CopyCosts& copies) {
  const Facts facts{.ranks = 2, .bytes = bytes, .stages_gpus = true, .gpu_copies = copies};
  return segment_bytes_of(named::binomial_broadcast, Tuning(), facts);
}

TEST(ChoiceOfSegments, of_staged_data_follow_from_the_costs_of_copies) {
  const Tuning tuning;
  for (uint64_t bytes = 4 << 20; bytes <= 1u << 30; bytes *= 2) {
    const uint64_t segment = staged_segment(bytes, kFast);
    EXPECT_TRUE(std::has_single_bit(segment)) << segment;
    EXPECT_GE(segment, tuning.segment_bytes_staged_least);
    EXPECT_LE(segment, tuning.segment_bytes_staged);
    EXPECT_LE(segment, staged_segment(2 * bytes, kFast));
    EXPECT_LE(segment, staged_segment(bytes, {40, 55'000})) << "dear copies are long";
    // The formula's own time, beside those of segments of half and of twice the length.
    const auto time_us = [&](uint64_t length) {
      const auto count = static_cast<double>(bytes) / static_cast<double>(length);
      return (count + 2) * (kFast.start_us + static_cast<double>(length) / kFast.bytes_per_us);
    };
    if (segment == tuning.segment_bytes_staged) continue;
    EXPECT_LE(time_us(segment), 1.1 * std::min(time_us(segment / 2), time_us(segment * 2)));
  }
  EXPECT_EQ(staged_segment(256 << 20, kFast), 8u << 20);
  // Noise of the measurement changes nothing, or the next power of two.
  EXPECT_EQ(staged_segment(256 << 20, {11, 52'000}), 8u << 20);
  EXPECT_EQ(staged_segment(1 << 30, {1e9, 1e9}), tuning.segment_bytes_staged) << "nonsense";
}

TEST(ChoiceOfSegments, of_staged_data_stay_as_they_are_without_costs_and_with_a_forced_algorithm) {
  for (uint64_t bytes = 4 << 20; bytes <= 1u << 30; bytes *= 2) {
    EXPECT_EQ(staged_segment(bytes, {}), std::min<uint64_t>(bytes / kSegmentsInFlight, 4 << 20));
    const std::vector<Forced> forced{{named::ring}};
    Facts facts{.ranks = 3, .bytes = bytes, .forced = forced, .stages_gpus = true};
    const uint64_t without = segment_bytes_of(named::ring, Tuning(), facts);
    facts.gpu_copies = kFast;
    EXPECT_EQ(segment_bytes_of(named::ring, Tuning(), facts), without) << "its bits follow";
  }
}

// Sums have the same bits with any segments, since candidates add in canonical order.
TEST(ChoiceOfSegments, of_staged_sums_change_no_bits) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    for (uint64_t bytes = 1 << 10; bytes <= 1u << 30; bytes *= 4) {
      for (const CopyCosts& copies : {CopyCosts(), kFast}) {
        const Facts facts{
            .ranks = ranks, .bytes = bytes, .stages_gpus = true, .gpu_copies = copies};
        const Choice choice = choose(Result::sum, Tuning(), facts);
        EXPECT_TRUE(adds_in_canonical_order(choice, facts)) << ranks << " ranks, " << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace rdmacoll
