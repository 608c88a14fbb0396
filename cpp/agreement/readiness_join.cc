// Ranks that have joined take part in every sum, with zeros.
#include <algorithm>

#include "agreement/readiness.h"
#include "base/text.h"
#include "operation/operation.h"

namespace rdmacoll {
namespace {

// Zeros do not change a sum. They could be the minimum or maximum, and would make a product zero.
bool goes_on_with_zeros(std::string_view bytes) {
  Descriptor descriptor;
  const bool is_readable = decode_descriptor(bytes, descriptor);
  RC_ASSERT(is_readable);
  if (descriptor.kind == Kind::barrier) return true;
  return descriptor.kind == Kind::allreduce &&
         (descriptor.op == ReduceOp::sum || descriptor.op == ReduceOp::average);
}

}  // namespace

// Pending records are passed on, unmerged, before the join.
bool Readiness::add_join(const ReadyRecord& record) {
  if (!joined_.emplace(record.origin, record.iteration).second) return false;
  last_joined_ = record.origin;
  if (!is_root()) {
    for (auto& [key, pending] : pending_) {
      if (!pending.piecemeal) pass_on(key, pending, 0);
    }
    pending_.clear();
    upward_.push_back(record);
    return true;
  }
  std::vector<UnitKey> keys;
  for (const auto& [key, pending] : pending_) keys.push_back(key);
  for (const UnitKey& key : keys) go_on_without_data(key);
  return true;
}

// Root: completes an operation that waits only for ranks that have joined.
void Readiness::go_on_without_data(const UnitKey& key) {
  const auto found = pending_.find(key);
  if (found == pending_.end() || said_by_all_.contains(key)) return;
  Pending& pending = found->second;
  const std::vector<SetRank> without = joined_without(pending);
  const bool is_agreed = pending.verdict.ok() && pending.variants.size() == 1;
  if (is_agreed && !without.empty() && !goes_on_with_zeros(pending.variants.front())) {
    judge(key, pending, needs_data(key, pending, without));
  }
  if (missing(pending).empty()) complete(key, pending);
}

// Ranks that have joined without submitting this operation.
std::vector<SetRank> Readiness::joined_without(const Pending& pending) const {
  std::vector<SetRank> without;
  for (const auto& [rank, number] : joined_) {
    ReadyRecord record;
    record.origin = rank;
    if (!has_spoken(pending, record)) without.push_back(rank);
  }
  return without;
}

Status Readiness::needs_data(const UnitKey& key, const Pending& pending,
                             const std::vector<SetRank>& without) const {
  ErrorDetail detail;
  detail.tensor = tensor(key, pending);
  detail.ranks = numbers(without);
  return {Code::invalid,
          cat(label(key, pending), " needs data of ", describe_ranks(without), ", which ",
              without.size() == 1 ? "has" : "have",
              " joined: until all ranks have joined, allreduce with Sum or Average and barrier go "
              "on, and nothing else. Call it before join(), or after it has returned."),
          detail};
}

// Warns about, and finally fails, a join that waits for ranks that neither join nor submit.
void Readiness::check_join(Nanoseconds now) {
  const Nanoseconds idle = now - join_moved_at_;
  if (!is_root() || !has_joined() || have_all_joined() || idle < limits_.stall_warning) return;
  std::vector<SetRank> present, absent;
  for (SetRank rank : world_.ranks()) {
    (joined_.contains(rank) ? present : absent).push_back(rank);
  }
  const std::string sentence =
      cat("join", world_.part(), " was called by ", present.size(), " of ", world_.size(),
          " ranks, and ", describe_ranks(absent), " neither joined nor submitted anything for ",
          tenths_of_seconds(idle), " s");
  if (idle >= limits_.stall_error) {
    ErrorDetail detail;
    detail.tensor = "join";
    detail.ranks = numbers(absent);
    verdicts_.push_back({"",
                         kJoinIteration,
                         present,
                         {Code::stalled,
                          cat(sentence,
                              ". Every rank must call join() when its data ends; look at what that "
                              "rank does, or raise RDMACOLL_STALL_ERROR_S."),
                          detail}});
    join_moved_at_ = now;
  } else if (!join_warned_) {
    join_warned_ = true;
    warnings_.push_back(cat(sentence, "; still waiting (RDMACOLL_STALL_ERROR_S sets the limit)."));
  }
}

Nanoseconds Readiness::join_deadline() const {
  if (!is_root() || !has_joined() || have_all_joined()) return kNever;
  return join_moved_at_ + (join_warned_ ? limits_.stall_error : limits_.stall_warning);
}

void Readiness::part() {
  joined_.clear();
  join_warned_ = false;
}

AllJoinedMessage Readiness::all_joined() const {
  AllJoinedMessage message{last_joined_, 0};
  for (const auto& [rank, number] : joined_) {
    message.next_number = std::max(message.next_number, number);
  }
  return message;
}

}  // namespace rdmacoll
