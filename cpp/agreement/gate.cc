#include "agreement/gate.h"

#include <algorithm>
#include <utility>

#include "agreement/segments.h"
#include "base/text.h"
#include "collectives/algorithms.h"
#include "operation/sound.h"

namespace rdmacoll {
namespace {

constexpr const char* kUnknown =
    "a number of an operation that nobody has given, or one that cannot run";
constexpr const char* kOutOfPlace = "a message of the agreement that only another rank may send";

// The limit for numbers of unnamed operations. Jobs submit fewer, and later numbers do not
// overflow.
constexpr int64_t kNumberMax = int64_t{1} << 60;
// An operation ends with an error long before it has waited for a year.
constexpr Nanoseconds kAgeMax = 366 * 24 * 3600 * kSecond;
// In a plan, a rank is ahead of others by its batches in flight. These are at most as many as the
// executor has lanes. In the log, a rank that needs no data of a slower one is also ahead by the
// small sends that the slower one has not taken, which the link's buffers bound. The limit is
// several times larger than both.
constexpr uint64_t kSequencesApart = 4096;
constexpr uint64_t kPageBytes = 4096;  // shared results are aligned to pages

bool is_number(int64_t iteration) { return iteration >= 0 && iteration <= kNumberMax; }

bool has_rows(const Descriptor& descriptor) { return row_of(descriptor.kind).first_may_differ; }

// Operations may share a batch if they are sums with equal dtype, operator and scales.
bool may_share(const Descriptor& a, const Descriptor& b) {
  return a.kind == Kind::allreduce && b.kind == Kind::allreduce && a.dtype == b.dtype &&
         a.op == b.op && a.prescale == b.prescale && a.postscale == b.postscale;
}

}  // namespace

Gate::Gate(const Facts& facts)
    : facts_(facts),
      world_(facts.world),
      parent_(facts.world.is_server() ? kTreeRoot : tree_parent(facts.world.rank())) {}

// Messages between two ranks keep their order. So a sequence that a rank sends at once is near
// here, too. One that it keeps for later may not be.
bool Gate::is_near(uint64_t sequence) const {
  const uint64_t accepted = facts_.log.accepted();
  return sequence <= accepted ? accepted - sequence <= kSequencesApart
                              : sequence - accepted <= kSequencesApart;
}

// Descriptors with a number are decoded once, since a number keeps its meaning.
const Descriptor* Gate::sound(const DescriptorRef& ref) {
  const std::string* bytes = facts_.table.resolve(ref);
  if (bytes == nullptr) return nullptr;
  const auto read = [&](Descriptor& descriptor) {
    return decode_descriptor(*bytes, descriptor) &&
           is_sound(descriptor, world_.size(), kOperationBytesMax);
  };
  if (ref.id == 0) {
    read_ = {};
    return read(read_) ? &read_ : nullptr;
  }
  for (uint32_t id = static_cast<uint32_t>(known_.size()) + 1; id <= ref.id; ++id) {
    bytes = facts_.table.text(id);
    auto descriptor = std::make_unique<Descriptor>();
    known_.push_back(read(*descriptor) ? std::move(descriptor) : nullptr);
  }
  return known_[ref.id - 1].get();
}

// ---- upward ----

std::string Gate::complaint(SetRank sender, const ReadyMessage& message) {
  if (!is_child(sender)) return kOutOfPlace;
  const uint32_t era = facts_.plan.era();
  if (message.era > era) return cat("readiness of era ", message.era, " in era ", era);
  if (message.era < era) return "";  // an earlier era is void
  for (const ReadyRecord& record : message.records) {
    std::string what = complaint_about(sender, record);
    if (!what.empty()) return what;
  }
  const auto is_wrong = [&](const TrialTime& time) {
    return time.sequence >= facts_.log.accepted() ||
           time.ranks > tree_subtree(sender, world_.size()).size();
  };
  return std::ranges::any_of(message.times, is_wrong) ? "the time of a decision that it cannot have"
                                                      : "";
}

std::string Gate::complaint_about(SetRank sender, const ReadyRecord& record) {
  SetRank below = record.origin;
  while (below > sender) below = tree_parent(below);
  if (below != sender || record.origin.value() >= world_.size()) {
    return cat("readiness of rank ", record.origin, ", which is not below it");
  }
  if (record.age > kAgeMax) return "readiness of an operation that is years old";
  if (record.joins) {
    const bool is_right = is_number(record.iteration) && record.rows.empty() && !record.subtree;
    return is_right ? "" : "a join with a wrong number, or with rows";
  }
  const std::string* bytes = facts_.table.resolve(record.descriptor);
  if (bytes == nullptr) return kUnknown;
  if (is_refusal(*bytes)) {  // a refusal may have any error, and never runs
    Descriptor refused;
    const bool is_right = decode_descriptor(*bytes, refused) && record.rows.empty();
    return is_right ? "" : "a refusal that cannot be read";
  }
  const Descriptor* descriptor = sound(record.descriptor);
  if (descriptor == nullptr) return kUnknown;
  if (descriptor->name.empty() && !is_number(record.iteration)) {
    return cat("readiness for operation number ", record.iteration);
  }
  return complaint_about_rows(record, *descriptor);
}

// Each rank of the record must have sent its row counts once.
std::string Gate::complaint_about_rows(const ReadyRecord& record,
                                       const Descriptor& descriptor) const {
  if (!has_rows(descriptor)) return record.rows.empty() ? "" : "rows of an operation without any";
  const std::vector<SetRank> ranks = record.subtree ? tree_subtree(record.origin, world_.size())
                                                    : std::vector<SetRank>{record.origin};
  std::vector<const std::vector<int64_t>*> said(ranks.size());
  for (const auto& [rank, rows] : record.rows) {
    const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end() || *found != rank) return cat("rows of rank ", rank, ", not below it");
    const std::vector<int64_t>*& place = said[static_cast<std::size_t>(found - ranks.begin())];
    if (std::exchange(place, &rows) != nullptr) return cat("rows of rank ", rank, " twice");
  }
  const std::vector<int64_t> none;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::vector<int64_t>& rows = said[i] == nullptr ? none : *said[i];
    if (!is_complete(descriptor, rows, ranks[i], world_.size()) ||
        bytes_of_own_rows(descriptor, rows, world_.size(), kOperationBytesMax) >
            kOperationBytesMax) {
      return cat("row counts of rank ", ranks[i], " that do not fit its operation");
    }
  }
  return "";
}

std::string Gate::complaint(SetRank sender, const FrozenMessage& message) {
  if (!is_child(sender)) return kOutOfPlace;
  // The plan may have ended already, because a rank has left.
  if (facts_.plan.phase() != Plan::Phase::frozen || message.era != facts_.plan.era()) return "";
  if (message.least < facts_.plan.start() || !is_near(message.least) ||
      !is_near(message.furthest) ||
      facts_.plan.repeats_within(std::min(message.least, facts_.plan.least()),
                                 std::max(message.furthest, facts_.plan.furthest()))) {
    return cat("a report of decisions ", message.least, " to ", message.furthest,
               ", which are not the plan's");
  }
  const auto [last, is_first] = reported_.try_emplace(sender, message.era);
  if (!is_first && std::exchange(last->second, message.era) == message.era) {
    return "a second report about one plan";
  }
  return "";
}

// ---- both ways ----

std::string Gate::complaint(SetRank sender, const FreezeMessage& message) {
  if (is_server() || (!is_parent(sender) && !is_child(sender))) return kOutOfPlace;
  if (message.era > facts_.plan.era()) return cat("the end of a plan of era ", message.era);
  return "";
}

// ---- downward ----

std::string Gate::complaint(SetRank sender, const InternMessage& message) {
  if (!is_parent(sender)) return kOutOfPlace;
  Descriptor descriptor;
  const bool is_right = facts_.table.is_next(message.id) && facts_.table.find(message.bytes) == 0 &&
                        decode_descriptor(message.bytes, descriptor) &&
                        is_sound(descriptor, world_.size(), kOperationBytesMax);
  return is_right ? "" : cat("descriptor ", message.id, ", which is out of order or cannot run");
}

std::string Gate::complaint(SetRank sender, const Decision& decision) {
  if (!is_parent(sender)) return kOutOfPlace;
  if (decision.sequence != facts_.log.accepted() || !is_unplanned()) {
    return cat("decision ", decision.sequence, " out of order");
  }
  units_.clear();
  for (const DecisionUnit& unit : decision.units) {
    const Descriptor* descriptor = sound(unit.descriptor);
    if (descriptor == nullptr) return kUnknown;
    units_.push_back({descriptor, unit.iteration});
    // A batch has only descriptors with numbers: there is one place for a full descriptor.
    if (unit.descriptor.id == 0 && decision.units.size() > 1) return kUnknown;
  }
  // A server receives all decisions without their rows, and takes part in some.
  if (is_server() && !is_by_servers(decision.movement.algorithm)) return "";
  const std::size_t receivers =
      decision.rows.empty() ? 0 : tree_subtree(world_.rank(), world_.size()).size();
  return complaint_about({decision.movement, decision.rows, decision.most_rows, receivers});
}

// Checks the operations in units_.
std::string Gate::complaint_about(const Batch& batch) {
  const Descriptor& first = *units_.front().descriptor;
  for (const Unit& unit : units_) {
    if (unit.descriptor->name.empty() && !is_number(unit.iteration)) {
      return cat("a decision about operation number ", unit.iteration);
    }
    const bool shares = &unit == &units_.front() || may_share(first, *unit.descriptor);
    if (!shares) return "a decision about operations that cannot share a batch";
  }
  if (has_a_unit_twice()) return "a decision that names an operation twice";
  bool moves_bytes = false;
  if (!are_rows_right(batch, first, moves_bytes)) {
    return "a decision with row counts that do not fit its operation";
  }
  const AlgorithmRow* row = row_of(batch.movement.algorithm);
  const bool fits =
      row == nullptr ? !moves_bytes : moves_bytes && row->result == row_of(first.kind).result;
  if (!fits) {
    return cat("a decision to run ", name_of(first.kind), " by ",
               row == nullptr ? std::string_view("no algorithm") : row->name);
  }
  if (batch.movement.segment_bytes > kOperationBytesMax) {
    return cat("a decision with segments of ", batch.movement.segment_bytes, " bytes");
  }
  return "";
}

// Also checks that their sizes can be counted. `moves_bytes`: whether any rank sends data.
bool Gate::are_rows_right(const Batch& batch, const Descriptor& descriptor,
                          bool& moves_bytes) const {
  const auto ranks = static_cast<uint64_t>(world_.size());
  uint64_t largest = 0;  // bytes that are cut in segments
  if (!has_rows(descriptor)) {
    if (!batch.rows.empty() || batch.most_rows != 0) return false;
    for (const Unit& unit : units_) largest += unit.descriptor->bytes();
    moves_bytes = largest > 0;
  } else {
    const bool is_exchange = descriptor.kind == Kind::alltoall;
    if (batch.rows.size() != ranks || (!is_exchange && batch.most_rows != 0)) return false;
    int64_t most = 0;
    for (std::size_t rank = 0; rank < batch.rows.size(); ++rank) {
      const std::vector<int64_t>& said = batch.rows[rank];
      const bool is_whole =
          is_exchange
              ? said.size() == 1 || said.size() == batch.receivers
              : is_complete(descriptor, said, SetRank(static_cast<int>(rank)), world_.size());
      if (!is_whole) return false;
      const uint64_t bytes = bytes_of_own_rows(descriptor, said, world_.size(), kOperationBytesMax);
      if (bytes > kOperationBytesMax) return false;
      for (int64_t rows : said) most = std::max(most, rows);
      largest = std::max(largest, bytes);
    }
    if (is_exchange) {
      largest = bytes_of_own_rows(descriptor, {batch.most_rows}, world_.size(), kOperationBytesMax);
      if (batch.most_rows < most || largest > kOperationBytesMax) return false;
    }
    moves_bytes = largest > 0;
  }
  const uint64_t shares = shares_of(row_of(descriptor.kind), world_.size());
  return largest <= kOperationBytesMax &&
         batch.movement.segment_bytes >= segment_bytes_min(largest, shares);
}

bool Gate::has_a_unit_twice() const {
  if (units_.size() == 1) return false;
  std::vector<std::pair<std::string_view, int64_t>> keys;
  for (const Unit& unit : units_) keys.emplace_back(unit.descriptor->name, unit.iteration);
  std::sort(keys.begin(), keys.end());
  return std::adjacent_find(keys.begin(), keys.end()) != keys.end();
}

std::string Gate::complaint(SetRank sender, const VerdictMessage& message) {
  if (is_server() || !is_parent(sender)) return kOutOfPlace;
  const bool is_join = message.name.empty() && message.iteration == kJoinIteration;
  if (message.name.empty() && !is_join && !is_number(message.iteration)) {
    return cat("an error of operation number ", message.iteration);
  }
  for (SetRank rank : message.ranks) {
    if (rank.is_none() || rank.value() >= world_.size()) return cat("an error for rank ", rank);
  }
  return "";
}

std::string Gate::complaint(SetRank sender, const PlanMessage& message) {
  if (is_server() || !is_parent(sender)) return kOutOfPlace;
  if (!is_unplanned() || message.era != facts_.plan.era() + 1 ||
      message.start != facts_.log.accepted() || message.first_number < -1 ||
      message.first_number > kNumberMax) {
    return cat("a plan from decision ", message.start, " on, which cannot be followed");
  }
  for (const PlannedDecision& decision : message.decisions) {
    units_.clear();
    int64_t number = message.first_number;
    for (const PlannedUnit& unit : decision.units) {
      const Descriptor* descriptor = sound({unit.descriptor, {}});
      if (descriptor == nullptr) return kUnknown;
      if (unit.numbered != descriptor->name.empty()) return "a plan that counts named operations";
      units_.push_back({descriptor, unit.numbered ? number++ : unit.iteration});
    }
    std::string what = complaint_about({decision.movement, decision.rows, decision.most_rows,
                                        static_cast<std::size_t>(world_.size())});
    if (!what.empty()) return what;
  }
  return "";
}

// Valid only after this rank has reported its progress in the plan.
std::string Gate::complaint(SetRank sender, const ResumeMessage& message) {
  if (is_server() || !is_parent(sender)) return kOutOfPlace;
  const uint64_t accepted = facts_.log.accepted();
  const bool is_right =
      facts_.plan.phase() == Plan::Phase::frozen && message.era == facts_.plan.era() + 1 &&
      message.least >= facts_.plan.start() && message.least <= accepted &&
      message.furthest >= accepted && is_near(message.least) && is_near(message.furthest) &&
      !facts_.plan.repeats_within(message.least, message.furthest);
  return is_right ? "" : "the end of a plan that is not at its end";
}

std::string Gate::complaint(SetRank sender, const CaughtUpMessage& message) {
  if (is_server() || !is_parent(sender)) return kOutOfPlace;
  if (facts_.catch_up.waits(message.sequence)) return "";
  return cat("the end of the wait for decision ", message.sequence, ", for which no rank waits");
}

std::string Gate::complaint(SetRank sender, const ReplayMessage& message) {
  if (is_server() || !is_parent(sender)) return kOutOfPlace;
  const bool is_right = facts_.catch_up.waits(message.sequence) &&
                        facts_.catch_up.unit_of(message.sequence) != nullptr &&
                        !facts_.plan.rows_of(message.sequence).empty();
  return is_right ? ""
                  : cat("a replay of decision ", message.sequence, ", which cannot be replayed");
}

std::string Gate::complaint(SetRank sender, const AllJoinedMessage& message) {
  if (is_server() || !is_parent(sender)) return kOutOfPlace;
  const std::optional<int64_t> mine = facts_.readiness.number_joined_with(world_.rank());
  if (!mine) return "the end of a join that this rank has not begun";
  if (message.next_number < *mine || message.next_number > kNumberMax) {
    return cat("operation number ", message.next_number, " as the first after a join, instead of ",
               *mine, " or more");
  }
  return "";
}

std::string Gate::complaint(SetRank sender, const ResultAddressMessage& message) {
  if (sender != kTreeRoot || world_.is_root()) return kOutOfPlace;
  const bool is_aligned =
      message.offset == ResultAddressMessage::kNotShared || message.offset % kPageBytes == 0;
  if (is_aligned && is_near(message.sequence)) return "";
  return cat("an offset of ", message.offset, " for the result of decision ", message.sequence);
}

}  // namespace rdmacoll
