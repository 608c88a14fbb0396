// Ranks that wait for each other: they have submitted different operations, or are at different
// iterations of one operation.
#include <algorithm>

#include "agreement/readiness.h"
#include "base/text.h"

namespace rdmacoll {

// The cure of stalls while ranks wait in different orders after a plan. Otherwise "".
std::string_view Readiness::cure_of_catching_up(Nanoseconds now) const {
  if (!held_up_at_ || now - *held_up_at_ > limits_.stall_warning) return "";
  return " The other ranks have begun sums by a plan, and cannot begin them again: they are in "
         "place, or share their results. Operations that the missing ranks submitted first wait "
         "for these sums. Submit all in one order on all ranks, give sums in place an output of "
         "their own, or set RDMACOLL_PLAN_REPEATS=0.";
}

void Readiness::judge_stalled(const UnitKey& key, Pending& pending,
                              const std::vector<SetRank>& absent, const std::string& sentence,
                              std::string_view cure) {
  constexpr std::string_view kUsual =
      " Every rank must submit the same operations; look at what that rank does, or raise "
      "RDMACOLL_STALL_ERROR_S.";
  ErrorDetail detail;
  detail.tensor = tensor(key, pending);
  detail.ranks = numbers(absent);
  judge(key, pending,
        {Code::stalled, cat(sentence, ".", cure.empty() ? kUsual : cure), std::move(detail)});
}

// Another iteration of this operation, which is missing exactly on the ranks that are not `absent`
// here.
const UnitKey* Readiness::other_iteration(const UnitKey& key,
                                          const std::vector<SetRank>& absent) const {
  if (key.name.empty()) return nullptr;
  for (auto entry = pending_.lower_bound({key.name, INT64_MIN});
       entry != pending_.end() && entry->first.name == key.name; ++entry) {
    if (entry->first.iteration == key.iteration || !entry->second.verdict.ok()) continue;
    if (is_apart(entry->second, absent)) return &entry->first;
  }
  return nullptr;
}

// Whether exactly the ranks `absent` have submitted the other operation.
bool Readiness::is_apart(const Pending& other, const std::vector<SetRank>& absent) const {
  const std::vector<SetRank> others = missing(other);
  return others.size() + absent.size() == static_cast<std::size_t>(world_.size()) &&
         std::none_of(others.begin(), others.end(), [&](SetRank rank) {
           return std::binary_search(absent.begin(), absent.end(), rank);
         });
}

// A clause on the operation that exactly the ranks `absent` have submitted, if it is late, too.
std::string Readiness::submitted_instead(const std::vector<SetRank>& absent,
                                         Nanoseconds now) const {
  for (const auto& [key, pending] : pending_) {
    const bool is_open = pending.verdict.ok() || pending.verdict.code() == Code::stalled;
    if (is_open && now - pending.since >= limits_.stall_warning / 2 && is_apart(pending, absent))
      return cat(", which submitted ", title(key, world_), " instead");
  }
  return "";
}

// One message for both iterations, the earlier one first.
std::string Readiness::iterations_apart(const UnitKey& key, const UnitKey& other,
                                        Nanoseconds age) const {
  const UnitKey& first = std::min(key, other);
  const UnitKey& second = std::max(key, other);
  const std::vector<SetRank> behind = missing(pending_.at(second));
  const std::vector<SetRank> ahead = missing(pending_.at(first));
  constexpr int64_t kShownMax = 1 << 20;  // in nested loops the iteration is not a count
  const bool is_count = first.iteration >= 0 && second.iteration < kShownMax;
  const auto iteration = [&](const UnitKey& one) {
    return is_count ? cat("iteration ", one.iteration) : std::string("one iteration");
  };
  return cat("ranks are at different iterations of the loop around ", title(key, world_), ": for ",
             tenths_of_seconds(age), " s ", describe_ranks(behind), " at ", iteration(first),
             " and ", describe_ranks(ahead), is_count ? " at " : " at another than ",
             is_count ? iteration(second) : "that",
             ". A loop has as many iterations on all ranks; in Keras give every rank as many "
             "batches, and the same steps_per_execution, which is not \"auto\"");
}

}  // namespace rdmacoll
