#include "collectives/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "base/status.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

namespace rdmacoll {
namespace {

bool is_in_canonical_order(const AlgorithmRow& row, const Facts& facts) {
  if (row.by_node) return facts.spread.is_canonical_by_node;
  return row.is_canonical({.ranks = facts.ranks});
}

// The algorithm that is forced for this size. None: choose() decides.
const AlgorithmRow* forced_at(const Facts& facts) {
  for (const Forced& forced : facts.forced) {
    if (facts.bytes > forced.bytes_max) continue;
    return forced.algorithm ? row_of(*forced.algorithm) : nullptr;
  }
  return nullptr;
}

// Up to here the data of all ranks fits into each rank's pool, whatever its size. GPUs have room.
constexpr uint64_t kLittleBytes = 512 << 10;

std::unique_ptr<Traffic> traffic_of(const AlgorithmRow& row, const Tuning& tuning,
                                    const Facts& facts) {
  auto traffic = std::make_unique<Traffic>(tuning.links, facts, row.result,
                                           segment_bytes_of(row.algorithm, tuning, facts));
  row.traffic(*traffic);
  return traffic;
}

// Costs that differ by less are the same.
constexpr double kDraw = 0.999;
// Algorithms whose costs differ by less do the same, as those for many ranks do on two.
constexpr double kAlike = 0.999'999;

// An algorithm that costs more than the choice by this factor is no rival. If a number of the
// profile is wrong by a factor of ten, the best algorithm is nearly always among the next two, and
// within this factor (docs/measurements/2026-11-28-trials.md). Each rival delays the first plan.
constexpr double kRivalCost = 2;
constexpr std::size_t kRivalsMax = 2;

struct RowCost {
  const AlgorithmRow* row = nullptr;
  double cost = std::numeric_limits<double>::infinity();
  std::unique_ptr<Traffic> traffic = nullptr;  // between nodes
};

// The first one of the cheapest.
const AlgorithmRow& cheapest_of(const std::vector<RowCost>& candidates) {
  const RowCost* best = &candidates.front();
  for (const RowCost& candidate : candidates) {
    if (candidate.cost < kDraw * best->cost) best = &candidate;
  }
  return *best->row;
}

// The times of rows with more steps than this, all together, would take too long to find. Their
// bounds decide.
constexpr uint64_t kStepsMost = 80'000;

// Between nodes, times of traffic take long. A row whose lower bound is more than the least time so
// far needs none.
void find_costs(std::vector<RowCost>& candidates, const Tuning& tuning, const Facts& facts,
                ChoiceWork& work) {
  std::vector<std::pair<double, RowCost*>> by_bound;
  uint64_t told = 0;
  for (RowCost& candidate : candidates) {
    candidate.traffic = traffic_of(*candidate.row, tuning, facts);
    by_bound.emplace_back(candidate.traffic->bound(), &candidate);
    told += candidate.traffic->steps();
  }
  work.told += told;
  std::ranges::stable_sort(by_bound, {}, [](const auto& one) { return one.first; });
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [bound, candidate] : by_bound) {
    if (kDraw * bound > least) continue;
    candidate->cost = told > kStepsMost ? bound : candidate->traffic->time();
    work.executed += candidate->traffic->events();
    least = std::min(least, candidate->cost);
  }
}

// The cheapest row. The first one counts if several cost the same.
const AlgorithmRow& cheapest(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts,
                             ChoiceWork& work) {
  std::vector<RowCost> candidates;
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.result != result || !why_no_candidate(row, tuning, facts).empty()) continue;
    candidates.push_back({&row});
  }
  RC_ASSERT(!candidates.empty(), "no algorithm is a candidate for this operation");
  const bool has_traffic = facts.one_node || facts.ranks > 1;
  if (candidates.size() == 1 || !has_traffic) return *candidates.front().row;
  if (!facts.one_node) {
    find_costs(candidates, tuning, facts, work);
  } else {
    for (RowCost& one : candidates) one.cost = formula_us(*one.row, tuning, facts);
  }
  return cheapest_of(candidates);
}

// Sizes between nodes go in classes: eight for each power of two, which is the last of its class.
uint64_t size_class(uint64_t bytes) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(bytes - 1)) - 4);
  const uint64_t unit = uint64_t{1} << shift;
  return (bytes + unit - 1) / unit * unit;
}

const AlgorithmRow& cheapest_of_class(AlgorithmRow::Result result, const Tuning& tuning,
                                      const Facts& facts, ChoiceWork& work) {
  if (facts.one_node) return cheapest(result, tuning, facts, work);
  Facts of_class = facts;
  of_class.bytes = size_class(facts.bytes);
  return cheapest(result, tuning, of_class, work);
}

// The forced row that counts for this operation, whatever costs say. None: choose() decides.
const AlgorithmRow* forced_row(AlgorithmRow::Result result, const Facts& facts) {
  const AlgorithmRow* forced = forced_at(facts);
  const bool counts = forced != nullptr && forced->result == result && facts.servers == 0 &&
                      (!facts.canonical || is_in_canonical_order(*forced, facts));
  return counts ? forced : nullptr;
}

Choice choice_of(const AlgorithmRow& row, const Tuning& tuning, const Facts& facts,
                 std::string_view reason) {
  return {row.algorithm, segment_bytes_of(row.algorithm, tuning, facts), reason};
}

std::string_view reason_for(const AlgorithmRow& cheapest, const Facts& facts) {
  if (cheapest.by_servers) return "parameter servers: each of them sums one part of all";
  const AlgorithmRow* forced = forced_at(facts);
  if (forced != nullptr && forced->result == cheapest.result) {
    return "the forced algorithm has no canonical order here";
  }
  return facts.one_node ? "within a node: the lowest cost by the rates of its memory"
                        : "between nodes: the lowest cost by latency and rate of the links";
}

// Whether segments are cut so small that packed data stays in the caches of the node. Scattered
// data is not cut so: each byte is packed for one rank alone, and caches gain nothing. Sums and
// exchanges that fit the cache gain nothing either.
bool is_cut_for_caches(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts) {
  if (is_scattered(result)) return false;
  const bool is_whole_if_small = is_sum(result) || result == AlgorithmRow::Result::exchange;
  const uint64_t whole = is_whole_if_small ? tuning.links.memory.cache_bytes : 0;
  return facts.bytes > whole && !facts.in_place;
}

// A rank's parts of all segments in flight fill half of its cache: what it adds, not all that it
// packs for peers. The latter leaves the cache of more than two ranks, as NodeCost says. Shorter
// segments would keep it there, and cost 8 ranks up to a tenth
// (docs/measurements/2026-11-29-choice-beside-forced.md).
uint64_t cached_part_bytes(const NodeMemory& memory) {
  return std::max<uint64_t>(memory.cache_bytes / (2 * kSegmentsInFlight), 4096);
}

// n segments that follow one another through so many further stages take n + `further_stages` times
// a stage. In each stage a segment has a fixed cost, which is that of so many bytes. The whole time
// is least for this length. It is a power of two, so that noise of the measurement seldom changes
// it.
uint64_t pipelined_segment_bytes(uint64_t bytes, double start_bytes, int further_stages,
                                 uint64_t least, uint64_t most) {
  const double best = std::sqrt(static_cast<double>(bytes) * start_bytes / further_stages);
  const double power = std::exp2(std::round(std::log2(std::max(best, 1.0))));
  return static_cast<uint64_t>(
      std::clamp(power, static_cast<double>(least), static_cast<double>(most)));
}

// Each copy from or to a GPU has a fixed cost. Each segment goes through three stages: a copy to
// the host, the way to the peer, and a copy to its GPU.
//
// A forced algorithm may add in an order that depends on the segments, so theirs never change.
uint64_t staged_segment_bytes(const Tuning& tuning, const Facts& facts) {
  if (!facts.gpu_copies.is_known() || !facts.forced.empty()) {
    return std::min(facts.bytes / kSegmentsInFlight, tuning.segment_bytes_shared);
  }
  const double start_bytes = facts.gpu_copies.start_us * facts.gpu_copies.bytes_per_us;
  return pipelined_segment_bytes(facts.bytes, start_bytes, 2, tuning.segment_bytes_staged_least,
                                 tuning.segment_bytes_staged);
}

// A whole segment of a broadcast lies in the pool, and each rank reads it while the next one is
// packed. Ranks that share a core take turns for each segment, so theirs are longer.
uint64_t broadcast_segment_bytes(const NodeMemory& memory, const Facts& facts) {
  const uint64_t cached = cached_part_bytes(memory);
  if (memory.on_cores(facts.ranks).shares_core()) {
    return cached * static_cast<uint64_t>(facts.ranks);
  }
  const double start_us = 2 * (memory.step_us + memory.message_us + memory.view_us);
  return pipelined_segment_bytes(facts.bytes, start_us * memory.copy.cached, 1,
                                 std::min(memory.data_bytes, cached), cached);
}

// The packed data of an exchange or a gather has one reader, and nothing is added to it. So it may
// leave the cache of its core. The ranks of a core pack twice that cache in all segments in flight:
// each of them n - 1 parts of an exchange, or one of a gather.
uint64_t moved_segment_bytes(AlgorithmRow::Result result, const NodeMemory& memory, int ranks) {
  const int packed = result == AlgorithmRow::Result::exchange ? std::max(1, ranks - 1) : 1;
  const uint64_t parts = 2 * memory_of_each(memory, ranks).cache_bytes / kSegmentsInFlight;
  return parts * static_cast<uint64_t>(ranks) / static_cast<uint64_t>(packed);
}

uint64_t cached_segment_bytes(AlgorithmRow::Result result, const NodeMemory& memory,
                              const Facts& facts) {
  using Result = AlgorithmRow::Result;
  if (result == Result::root_value) return broadcast_segment_bytes(memory, facts);
  const uint64_t cached = cached_part_bytes(memory) * static_cast<uint64_t>(facts.ranks);
  const bool moves = result == Result::exchange || result == Result::root_concatenation;
  return moves ? std::max(cached, moved_segment_bytes(result, memory, facts.ranks)) : cached;
}

uint64_t segment_bytes_in_node(AlgorithmRow::Result result, const Tuning& tuning,
                               const Facts& facts) {
  if (is_cut_for_caches(result, tuning, facts)) {
    const uint64_t cached = cached_segment_bytes(result, tuning.links.memory, facts);
    const uint64_t least = facts.stages_gpus ? staged_segment_bytes(tuning, facts) : 0;
    return std::max(std::min(cached, tuning.segment_bytes_packed), least);
  }
  // Segments of a broadcast follow one another down the tree.
  const bool follow = result == AlgorithmRow::Result::root_value;
  return follow ? tuning.segment_bytes_shared / 4 : tuning.segment_bytes_shared;
}

}  // namespace

uint64_t segment_bytes_of(Algorithm algorithm, const Tuning& tuning, const Facts& facts) {
  if (facts.segment_bytes) return *facts.segment_bytes;
  if (facts.on_gpus && facts.one_node) return tuning.segment_bytes_gpus;
  const AlgorithmRow* row = row_of(algorithm);
  if (row == nullptr) {
    return facts.one_node ? tuning.segment_bytes_shared : tuning.segment_bytes_network;
  }
  if (facts.one_node) return segment_bytes_in_node(row->result, tuning, facts);
  const int shares = row->by_servers && facts.servers > 0 ? facts.servers : facts.ranks;
  const uint64_t of_shares = tuning.segment_bytes_rank * static_cast<uint64_t>(shares);
  switch (row->segments) {
    case Segments::whole:
      break;
    case Segments::stages:
      return std::min(tuning.segment_bytes_stages, of_shares);
    case Segments::shares:
      return std::min(tuning.segment_bytes_network, of_shares);
    case Segments::tree:
      return std::clamp(facts.bytes / kSegmentsInFlight, tuning.segment_bytes_trees_least,
                        tuning.segment_bytes_trees);
  }
  return tuning.segment_bytes_network;
}

Tuning tuning_for(const LinkModel& links) {
  Tuning tuning{.links = links};
  // Over TCP, data that has arrived is still in the cache when it is added (measured, two hosts).
  if (!links.via_nic) tuning.segment_bytes_rank = 128 << 10;
  return tuning;
}

double row_bytes_of_rank(AlgorithmRow::Result result, const Facts& facts) {
  const auto bytes = static_cast<double>(facts.bytes);
  return result == AlgorithmRow::Result::exchange ? 2 * bytes / facts.ranks : bytes;
}

double segments_of(double bytes, uint64_t segment_bytes) {
  return std::max(1.0, std::ceil(bytes / static_cast<double>(segment_bytes)));
}

std::string_view why_no_candidate(const AlgorithmRow& row, const Tuning& tuning,
                                  const Facts& facts) {
  const bool have_servers = facts.servers > 0 && row.result == AlgorithmRow::Result::sum;
  if (row.by_servers) return have_servers ? "" : "there are no parameter servers";
  if (have_servers) return "the parameter servers add, so other algorithms do not apply";
  if (facts.canonical && is_sum(row.result) && !is_in_canonical_order(row, facts)) {
    return "RDMACOLL_ORDER requests canonical order";
  }
  if (row.needs_even && !facts.is_even) {
    return "it needs parts of equal size, and the ranks do not divide these bytes";
  }
  if (row.correction != nullptr) {
    const std::string_view correction = row.correction(tuning, facts);
    if (!correction.empty()) return correction;
  }
  if (facts.one_node) return row.cost_in_node == nullptr ? "it is no candidate within a node" : "";
  if (row.by_node && !facts.spread.shares_nodes) return "each node has one rank";
  return row.traffic == nullptr ? "it has no formula between nodes" : "";
}

double formula_us(const AlgorithmRow& row, const Tuning& tuning, const Facts& facts) {
  if (!facts.one_node) {
    return traffic_of(row, tuning, facts)->time();
  }
  const uint64_t segment_bytes = segment_bytes_of(row.algorithm, tuning, facts);
  const bool is_little =
      facts.on_gpus || facts.bytes * static_cast<uint64_t>(facts.ranks) <= kLittleBytes;
  const bool is_unfit =
      (row.for_little && !is_little) || (facts.shares_result && !row.has_one_writer);
  if (is_unfit) return std::numeric_limits<double>::infinity();
  return row.cost_in_node(InNode(tuning.links.memory, facts, row.result, segment_bytes));
}

std::vector<Choice> rivals_in_node(const Choice& choice, const Tuning& tuning, const Facts& facts) {
  const AlgorithmRow* chosen = row_of(choice.algorithm);
  if (chosen == nullptr || forced_at(facts) != nullptr) return {};
  const double least = formula_us(*chosen, tuning, facts);
  std::vector<std::pair<double, const AlgorithmRow*>> rows;
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.result != chosen->result || !why_no_candidate(row, tuning, facts).empty()) continue;
    const double cost = formula_us(row, tuning, facts);
    const bool is_same = cost >= kAlike * least && cost <= least / kAlike;
    if (!is_same && cost <= kRivalCost * least) rows.emplace_back(cost, &row);
  }
  std::ranges::stable_sort(rows, {}, [](const auto& row) { return row.first; });
  const auto is_alike = [](const auto& a, const auto& b) { return a.first >= kAlike * b.first; };
  rows.erase(std::unique(rows.begin(), rows.end(), is_alike), rows.end());
  std::vector<Choice> rivals;
  for (const auto& [cost, row] : std::span(rows).first(std::min(rows.size(), kRivalsMax))) {
    rivals.push_back({row->algorithm, segment_bytes_of(row->algorithm, tuning, facts),
                      "within a node: about as cheap as the choice"});
  }
  return rivals;
}

namespace {

// Nodes whose ranks follow each other.
struct NodeBlocks {
  int size = 0;  // ranks of each node but the last one, which may have fewer; 0: the nodes differ
  std::size_t count = 0;

  bool are_canonical() const {
    return count == 1 || std::has_single_bit(static_cast<unsigned>(size));
  }
};

NodeBlocks blocks_of(const Shape& shape) {
  int size = 0;  // ranks of the first node
  while (size < shape.ranks && shape.node_of(size) == shape.node_of(0)) ++size;
  std::set<int> begun;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const bool begins = rank == 0 || shape.node_of(rank) != shape.node_of(rank - 1);
    if (begins != (rank % size == 0)) return {};
    if (begins && !begun.insert(shape.node_of(rank)).second) return {};  // the node is split
  }
  return {size, begun.size()};
}

}  // namespace

bool are_nodes_canonical(const Shape& shape) { return blocks_of(shape).are_canonical(); }

Spread::Spread(const Shape& shape) {
  const NodeBlocks blocks = blocks_of(shape);
  is_canonical_by_node = blocks.are_canonical();
  const std::set<int> distinct(shape.nodes.begin(), shape.nodes.end());
  if (distinct.size() > 1) nodes = shape.nodes;
  shares_nodes = distinct.size() < nodes.size();
  const bool are_equal = blocks.size > 0 && shape.ranks % blocks.size == 0;
  ranks_of_node = nodes.empty() ? 1 : are_equal ? blocks.size : 0;
}

Choice choose(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts,
              ChoiceWork* work) {
  if (facts.bytes == 0) return {};
  if (const AlgorithmRow* forced = forced_row(result, facts)) {
    return choice_of(*forced, tuning, facts, "forced by RDMACOLL_ALLREDUCE_ALGORITHM");
  }
  ChoiceWork unused;
  const AlgorithmRow& row =
      cheapest_of_class(result, tuning, facts, work == nullptr ? unused : *work);
  return choice_of(row, tuning, facts, reason_for(row, facts));
}

Choice Choices::choose(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts) {
  if (facts.one_node || facts.bytes == 0 || forced_row(result, facts) != nullptr) {
    return rdmacoll::choose(result, tuning, facts);
  }
  const Key key{result, size_class(facts.bytes), facts.wide_sums, facts.canonical, facts.is_even};
  const AlgorithmRow*& row = found_[key];
  ChoiceWork unused;
  if (row == nullptr) row = &cheapest_of_class(result, tuning, facts, unused);
  return choice_of(*row, tuning, facts, reason_for(*row, facts));
}

bool adds_in_canonical_order(const Choice& choice, const Facts& facts) {
  const AlgorithmRow* row = row_of(choice.algorithm);
  return row == nullptr || is_in_canonical_order(*row, facts);
}

}  // namespace rdmacoll
