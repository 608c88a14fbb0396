#include "agreement/recurrence.h"

#include <algorithm>
#include <map>

#include "operation/cut.h"

namespace rdmacoll {
namespace {

constexpr int kBackoffMax = 8;
// A plan that lasted this many periods saved more than its beginning and end cost.
constexpr uint64_t kPeriodsThatPay = 16;

// The finalizer of SplitMix64. Sums of such hashes are accidentally equal with probability 2^-64.
uint64_t mix(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}
// A decision with rows has one unit.
uint64_t hash(const PlannedUnit& unit, const RowTable& rows) {
  uint64_t hash =
      mix(mix(unit.descriptor + 0x9e3779b97f4a7c15) + static_cast<uint64_t>(unit.iteration));
  for (const std::vector<int64_t>& said : rows) {
    hash = mix(hash + said.size());
    for (int64_t number : said) hash = mix(hash + static_cast<uint64_t>(number));
  }
  return hash;
}

std::size_t numbers_in(const RowTable& rows) {
  std::size_t numbers = 0;
  for (const std::vector<int64_t>& said : rows) numbers += said.size();
  return numbers;
}

}  // namespace

void Recurrence::note(const Decision& decision) {
  if (repeats_ == 0) return;
  since_trial_ = decision.is_timed ? 0 : since_trial_ + 1;
  std::optional<PlannedDecision> next = planned(decision);
  if (!next) return restart();
  ++noted_;
  before_.push_back(now_);
  for (const PlannedUnit& unit : next->units) {
    ++now_.units;
    now_.sum += hash(unit, next->rows);
  }
  ends_[now_.units % kEnds] = now_;
  history_.push_back(std::move(*next));
  if (history_.size() <= kPeriodMax) return;
  history_.pop_front();
  before_.pop_front();
}

std::optional<PlannedDecision> Recurrence::planned(const Decision& decision) {
  PlannedDecision planned{.movement = decision.movement, .most_rows = decision.most_rows};
  bool is_plannable = numbers_in(decision.rows) <= kRowsMax;
  for (const DecisionUnit& unit : decision.units) {
    const std::string* bytes = table_.resolve(unit.descriptor);
    is_plannable = is_plannable && unit.descriptor.id != 0 && bytes != nullptr;
    const bool numbered = bytes != nullptr && descriptor_name(*bytes).empty();
    if (numbered) {
      is_plannable = is_plannable && (next_number_ < 0 || unit.iteration == next_number_);
      next_number_ = unit.iteration + 1;
    }
    planned.units.push_back({unit.descriptor.id, numbered, numbered ? 0 : unit.iteration});
  }
  if (!is_plannable) return std::nullopt;
  planned.rows = decision.rows;
  return planned;
}

std::optional<Recurrence::Period> Recurrence::find() const {
  if (repeats_ == 0) return std::nullopt;
  const uint64_t least = std::max<uint64_t>(repeats_, 2) << backoff_;
  for (std::size_t period = 1; period <= history_.size(); ++period) {
    if (noted_ < least * period || since_trial_ < period) break;
    if (!repeats(before_[before_.size() - period])) continue;
    std::vector<PlannedDecision> decisions(history_.end() - static_cast<std::ptrdiff_t>(period),
                                           history_.end());
    if (!has_one_meaning(decisions)) return std::nullopt;
    return Period{std::move(decisions), next_number_};
  }
  return std::nullopt;
}

// Refuses a period in which one name stands for different descriptors or rows.
bool Recurrence::has_one_meaning(const std::vector<PlannedDecision>& decisions) const {
  std::map<std::pair<std::string_view, int64_t>, std::pair<uint32_t, const RowTable*>> meanings;
  for (const PlannedDecision& decision : decisions) {
    for (const PlannedUnit& unit : decision.units) {
      if (unit.numbered) continue;
      const std::string_view name = descriptor_name(*table_.text(unit.descriptor));
      const auto [known, is_new] =
          meanings.try_emplace({name, unit.iteration}, unit.descriptor, &decision.rows);
      const auto& [descriptor, rows] = known->second;
      if (!is_new && (descriptor != unit.descriptor || *rows != decision.rows)) return false;
    }
  }
  return true;
}

// Whether the units since `before` repeat, in any order, as often as required.
bool Recurrence::repeats(const End& before) const {
  const uint64_t units = now_.units - before.units, sum = now_.sum - before.sum;
  End end = before;
  for (uint64_t left = std::max<uint64_t>(repeats_, 2) - 1; left > 0; --left) {
    if (end.units < units) return false;
    const End& start = ends_[(end.units - units) % kEnds];
    if (start.units < first_.units || start.units != end.units - units ||
        end.sum - start.sum != sum)
      return false;
    end = start;
  }
  return true;
}

void Recurrence::plan_ended(std::size_t period, uint64_t decisions) {
  const bool paid = decisions >= kPeriodsThatPay * period;
  backoff_ = paid ? 0 : std::min(backoff_ + 1, kBackoffMax);
  forget();
}

void Recurrence::forget() {
  restart();
  next_number_ = -1;
}

// Decisions before this point no longer count.
void Recurrence::restart() {
  history_.clear();
  before_.clear();
  noted_ = 0;
  first_ = now_;
}

}  // namespace rdmacoll
