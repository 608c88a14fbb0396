#include "engine/recurrence.h"

#include <algorithm>

#include "engine/operation.h"

namespace rdmacoll {
namespace {

constexpr int kPatienceMax = 8;
// A plan that lasted for so many periods was worth its beginning and its end.
constexpr uint64_t kPeriodsThatPay = 16;

}  // namespace

void Recurrence::note(const Decision& decision) {
  if (repeats_ == 0) return;
  std::optional<PlannedDecision> next = planned(decision);
  if (!next) return forget();
  for (std::size_t period = 1; period <= kPeriodMax; ++period) {
    const bool repeats = period <= history_.size() && history_[history_.size() - period] == *next;
    runs_[period] = repeats ? runs_[period] + 1 : 0;
  }
  history_.push_back(std::move(*next));
  if (history_.size() > kPeriodMax) history_.pop_front();
}

// Sums alone: their data comes from every rank to every rank, so that whoever has one knows that
// all have started it. (A barrier has no data, the root of a broadcast waits for nobody.)
std::optional<PlannedDecision> Recurrence::planned(const Decision& decision) {
  PlannedDecision planned{decision.algorithm, decision.segment_bytes, {}};
  bool is_plannable = decision.algorithm != Algorithm::none && decision.firsts.empty();
  for (const DecisionUnit& unit : decision.units) {
    const std::string* bytes = table_.resolve(unit.descriptor);
    Descriptor descriptor;
    is_plannable = is_plannable && unit.descriptor.id != 0 && bytes != nullptr &&
                   decode_descriptor(*bytes, descriptor) && descriptor.kind == Kind::allreduce;
    const bool numbered = bytes != nullptr && descriptor_name(*bytes).empty();
    if (numbered) {
      is_plannable = is_plannable && (next_number_ < 0 || unit.iteration == next_number_);
      next_number_ = unit.iteration + 1;
    }
    planned.units.push_back({unit.descriptor.id, numbered, numbered ? 0 : unit.iteration});
  }
  if (!is_plannable) return std::nullopt;
  return planned;
}

std::optional<Recurrence::Period> Recurrence::find() const {
  if (repeats_ == 0) return std::nullopt;
  for (std::size_t period = 1; period <= std::min(kPeriodMax, history_.size()); ++period) {
    if (runs_[period] < (std::max<uint64_t>(repeats_ - 1, 1) * period) << patience_) continue;
    return Period{{history_.end() - static_cast<std::ptrdiff_t>(period), history_.end()},
                  next_number_};
  }
  return std::nullopt;
}

void Recurrence::plan_ended(std::size_t period, uint64_t decisions) {
  const bool paid = decisions >= kPeriodsThatPay * period;
  patience_ = paid ? 0 : std::min(patience_ + 1, kPatienceMax);
  forget();
  next_number_ = -1;
}

void Recurrence::forget() {
  history_.clear();
  runs_.fill(0);
}

}  // namespace rdmacoll
