// Detects records that would count a rank twice. A correct rank never sends them.
#include <algorithm>

#include "agreement/readiness.h"

namespace rdmacoll {
namespace {

// Whether `rank` equals `ancestor`, or is below it in the control tree.
bool is_below(SetRank ancestor, SetRank rank) {
  while (rank > ancestor) rank = tree_parent(rank);
  return rank == ancestor;
}

}  // namespace

// Whether a rank that has spoken already lies in the subtree of the record.
bool Readiness::counts_twice(const Pending& pending, const ReadyRecord& record) {
  return record.subtree && std::any_of(pending.contributions.begin(), pending.contributions.end(),
                                       [&](const Contribution& contribution) {
                                         return is_below(record.origin, contribution.origin);
                                       });
}

// A rank sends its next operation once. It sends another only after the verdict of that one.
bool Readiness::is_held(const Pending& pending, const ReadyRecord& record) {
  return std::any_of(pending.held.begin(), pending.held.end(), [&](const ReadyRecord& held) {
    return held.origin == record.origin ||
           (record.subtree && is_below(record.origin, held.origin)) ||
           (held.subtree && is_below(held.origin, record.origin));
  });
}

}  // namespace rdmacoll
