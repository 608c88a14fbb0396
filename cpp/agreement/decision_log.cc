#include "agreement/decision_log.h"

#include <algorithm>

#include "agreement/segments.h"
#include "base/status.h"
#include "operation/cut.h"
#include "operation/sound.h"

namespace rdmacoll {
namespace {

// Segments shorter than the best length by this factor slow an operation noticeably.
constexpr uint64_t kCutShort = 4;

// More sums of different lengths than a step has between two plans are unusual.
constexpr std::size_t kKnownWaysMax = 256;

}  // namespace

DecisionLog::DecisionLog(const SetWorld& world, DescriptorTable& table, Rules rules)
    : world_(world), table_(table), rules_(std::move(rules)) {
  nodes_ = world.nodes();
  spread_ = Spread({.ranks = world.size(), .rank = world.rank().value(), .nodes = nodes_});
}

SetRank DecisionLog::offer(ReadyUnit unit, bool on_gpu) {
  Offer offer{std::move(unit), {}, 0, 0, 0, false, on_gpu};
  const bool readable = decode_descriptor(offer.unit.descriptor, offer.descriptor);
  RC_ASSERT(readable, "a descriptor that passed the gate cannot be read");
  offer.bytes = offer.descriptor.bytes();
  const SetRank incomplete = incomplete_rank(offer.descriptor, offer.unit.rows, world_.size());
  if (!incomplete.is_none()) return incomplete;
  if (row_of(offer.descriptor.kind).makes_result) {
    offer.bytes = bytes_moved(offer.descriptor, offer.unit.rows, world_.size());
  }
  if (offer.descriptor.kind == Kind::alltoall) {
    offer.most_rows = most_rows(offer.unit.rows);
    offer.is_even = std::all_of(offer.unit.rows.begin(), offer.unit.rows.end(),
                                [&](const std::vector<int64_t>& numbers) {
                                  return numbers.size() == 1 && numbers[0] == offer.most_rows;
                                });
  }
  offer.cut_bytes = cut_bytes_of(offer);
  offered_.push_back(std::move(offer));
  return SetRank();
}

bool DecisionLog::has_offer(const UnitKey& key) const {
  return std::ranges::any_of(offered_, [&](const Offer& offer) { return offer.unit.key == key; });
}

uint64_t DecisionLog::cut_bytes_of(const Offer& offer) const {
  const Descriptor& descriptor = offer.descriptor;
  if (!row_of(descriptor.kind).first_may_differ) return offer.bytes;
  const auto bytes_of = [&](const std::vector<int64_t>& rows) {
    return bytes_of_own_rows(descriptor, rows, world_.size(), kOperationBytesMax);
  };
  if (descriptor.kind == Kind::alltoall) return bytes_of({offer.most_rows});
  uint64_t most = 0;
  for (const std::vector<int64_t>& rows : offer.unit.rows) most = std::max(most, bytes_of(rows));
  return most;
}

// Only sums in canonical order, alone and in a batch of `bytes`, may share a batch. Otherwise the
// bits of a result would depend on timing.
bool DecisionLog::fuses(const Offer& offer, uint64_t bytes) {
  if (offer.descriptor.kind != Kind::allreduce || offer.bytes > rules_.fuse_unit_bytes ||
      bytes > rules_.fuse_batch_bytes) {
    return false;
  }
  const Facts facts = facts_of(offer, bytes);
  // All candidates are canonical then. The choice itself would cost time for each length.
  if (facts.canonical && facts.forced.empty() && facts.servers == 0) return true;
  return adds_in_canonical_order(choices_.choose(AlgorithmRow::Result::sum, rules_.tuning, facts),
                                 facts);
}

bool DecisionLog::may_share(const Offer& a, const Offer& b) const {
  const Descriptor &x = a.descriptor, &y = b.descriptor;
  return x.dtype == y.dtype && x.op == y.op && x.prescale == y.prescale &&
         x.postscale == y.postscale;
}

Facts DecisionLog::facts_of(const Offer& offer, uint64_t bytes) const {
  const Descriptor& what = offer.descriptor;
  const bool is_wide = has_wide_sums(what.kind, what.dtype, what.op);
  // More bytes than this offer mean a batch, which requires the canonical order. A forced algorithm
  // takes precedence, and ends the batch instead.
  const bool is_batch = bytes > offer.bytes && rules_.forced.empty();
  const bool is_canonical = rules_.canonical || is_batch;
  const bool on_gpus = offer.on_gpu && visibility_.gpus;
  const bool stages_gpus = offer.on_gpu && !visibility_.gpus;
  return {.ranks = world_.size(),
          .one_node = visibility_.one_node,
          .bytes = bytes,
          .wide_sums = is_wide,
          .canonical = is_canonical,
          .forced = rules_.forced,
          .segment_bytes = rules_.segment_bytes,
          .spread = spread_,
          .is_even = offer.is_even,
          .servers = rules_.servers,
          .on_gpus = on_gpus,
          .stages_gpus = stages_gpus,
          .gpu_copies = visibility_.gpu_copies,
          .shares_result = what.shares_results};
}

DecisionLog::Way DecisionLog::way_of(const Facts& facts, AlgorithmRow::Result result,
                                     bool in_place) {
  Facts with_place = facts;
  with_place.in_place = in_place;
  return {choices_.choose(result, rules_.tuning, with_place), in_place};
}

// Trials take no part in what several nodes or GPUs do. Data that only moves has them from a larger
// size on.
bool DecisionLog::may_try(const Offer& offer, uint64_t bytes) const {
  const Tuning& tuning = rules_.tuning;
  const uint64_t least =
      row_of(offer.descriptor.kind).reduces ? tuning.trial_bytes : tuning.trial_bytes_in_place;
  return rules_.tries_ways && visibility_.one_node && !offer.on_gpu && rules_.servers == 0 &&
         bytes >= least;
}

// Ways with trials are remembered, since the formulas of all rivals take long for a small sum.
const DecisionLog::Ways& DecisionLog::ways_of(const Offer& offer, uint64_t bytes,
                                              uint64_t bytes_of_rank) {
  if (!may_try(offer, bytes)) return other_ways_ = find_ways(offer, bytes, bytes_of_rank);
  const Descriptor& what = offer.descriptor;
  const WaysKey key{what.kind,
                    has_wide_sums(what.kind, what.dtype, what.op),
                    bytes > offer.bytes,
                    what.shares_results,
                    offer.is_even,
                    visibility_.callers,
                    bytes};
  const auto known = known_ways_.find(key);
  if (known != known_ways_.end()) return known->second;
  if (known_ways_.size() == kKnownWaysMax) known_ways_.clear();
  return known_ways_[key] = find_ways(offer, bytes, bytes_of_rank);
}

// All ways of a decision have the same bits: they add in canonical order.
DecisionLog::Ways DecisionLog::find_ways(const Offer& offer, uint64_t bytes,
                                         uint64_t bytes_of_rank) {
  const AlgorithmRow::Result result = row_of(offer.descriptor.kind).result;
  const bool is_usual = rules_.tuning.reads_in_place(result, bytes_of_rank);
  Facts facts = facts_of(offer, bytes);
  facts.in_place = is_usual;
  std::vector<Way> ways{way_of(facts, result, is_usual)};
  if (may_try(offer, bytes)) {
    if (rules_.tries_places && visibility_.callers && bytes >= rules_.tuning.trial_bytes_in_place) {
      ways.push_back(way_of(facts, result, !is_usual));
    }
    for (const Choice& rival : rivals_in_node(ways.front().choice, rules_.tuning, facts)) {
      ways.push_back({rival, is_usual});
    }
  }
  const auto is_canonical = [&](const Way& way) {
    return adds_in_canonical_order(way.choice, facts);
  };
  if (!std::ranges::all_of(ways, is_canonical)) ways.resize(1);
  Trials::Ways numbers;
  for (const Way& way : ways) {
    numbers.push_back(2 * static_cast<uint32_t>(way.choice.algorithm) + (way.in_place ? 1 : 0));
  }
  return {std::move(ways), std::move(numbers)};
}

// The wide sums (float32) of 16-bit floats take twice the memory. Segments on GPUs fit one at a
// time into the pool of a rank that has to stage them.
uint64_t DecisionLog::segment_bytes_max(const Offer& offer, Algorithm algorithm) const {
  const Descriptor& what = offer.descriptor;
  const bool is_wide = has_wide_sums(what.kind, what.dtype, what.op);
  const Shape shape{.ranks = world_.size(), .servers = rules_.servers};
  const uint64_t room = rules_.segment_room / (is_wide ? kWide : 1);
  const uint64_t most = segment_bytes_that_fit(algorithm, shape, room);
  const bool on_gpus = offer.on_gpu && visibility_.gpus && most <= UINT64_MAX / kSegmentsInFlight;
  return on_gpus ? most * kSegmentsInFlight : most;
}

// The number of offers at the front that share a batch.
std::size_t DecisionLog::batch_at_front() {
  const Offer& first = offered_.front();
  std::size_t count = 1;
  if (!fuses(first, first.bytes)) return count;
  for (uint64_t bytes = first.bytes; count < offered_.size(); ++count) {
    const Offer& next = offered_[count];
    bytes += next.bytes;
    if (!fuses(next, next.bytes) || !may_share(first, next) || !fuses(first, bytes)) break;
  }
  return count;
}

// The root judges the times. Other ranks pass them up.
void DecisionLog::judge() {
  if (!world_.is_root()) return;
  for (const TrialTime& time : times_.take()) trials_.ended(time);
}

std::optional<DecisionLog::Formed> DecisionLog::form(const Visibility& visibility, bool is_idle,
                                                     Nanoseconds now) {
  if (offered_.empty() || (!is_idle && times_.has_running())) return std::nullopt;
  visibility_ = visibility;
  const std::size_t count = batch_at_front();
  uint64_t bytes = 0, cut_bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += offered_[i].bytes;
    cut_bytes += offered_[i].cut_bytes;
  }
  // A rank sends and receives its share of what an alltoall moves.
  const bool is_exchange = offered_.front().descriptor.kind == Kind::alltoall;
  const uint64_t bytes_of_rank =
      is_exchange ? 2 * bytes / static_cast<uint64_t>(world_.size()) : bytes;
  const auto& [ways, numbers] = ways_of(offered_.front(), bytes, bytes_of_rank);
  if (!is_idle && ways.size() > 1 && !trials_.are_decided(bytes, numbers)) return std::nullopt;
  const Offer first = offered_.front();
  Formed formed;
  formed.decision.sequence = formed_++;
  for (std::size_t i = 0; i < count; ++i, offered_.pop_front()) {
    const Offer& offer = offered_.front();
    bool is_new = false;
    const uint32_t id = table_.intern(offer.unit.descriptor, is_new);
    if (is_new) formed.interns.push_back({id, offer.unit.descriptor});
    formed.decision.units.push_back(
        {id != 0 ? DescriptorRef{id, {}} : DescriptorRef{0, offer.unit.descriptor},
         offer.unit.key.iteration});
  }
  Trials::Turn turn;
  if (ways.size() > 1) {
    turn = trials_.next({formed.decision.sequence, first.unit.key.name, now}, bytes, numbers);
  }
  formed.decision.is_timed = turn.is_trial;
  const auto& [choice, in_place] = ways[turn.way];
  Movement& movement = formed.decision.movement;
  movement.in_place = in_place;
  movement.algorithm = choice.algorithm;
  movement.segment_bytes = std::max(
      std::min(choice.segment_bytes, segment_bytes_max(first, choice.algorithm)),
      segment_bytes_min(cut_bytes, shares_of(row_of(first.descriptor.kind), world_.size())));
  formed.is_cut_short =
      bytes > movement.segment_bytes && choice.segment_bytes / kCutShort >= movement.segment_bytes;
  formed.decision.rows = first.unit.rows;
  formed.decision.most_rows = first.most_rows;
  return formed;
}

}  // namespace rdmacoll
