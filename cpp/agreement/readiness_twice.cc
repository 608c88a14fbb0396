// Records that would count a rank twice: no rank sends them.
#include <algorithm>

#include "agreement/readiness.h"

namespace rdmacoll {
namespace {

// In the control tree, or the same rank.
bool is_below(int ancestor, int rank) {
  while (rank > ancestor) rank = tree_parent(rank);
  return rank == ancestor;
}

}  // namespace

// A rank that has spoken is in the subtree that the record is about.
bool Readiness::counts_twice(const Pending& pending, const ReadyRecord& record) {
  return record.subtree && std::any_of(pending.contributions.begin(), pending.contributions.end(),
                                       [&](const Contribution& contribution) {
                                         return is_below(record.origin, contribution.origin);
                                       });
}

// A rank says its next operation once: only the verdict of that makes it say another.
bool Readiness::is_held(const Pending& pending, const ReadyRecord& record) {
  return std::any_of(pending.held.begin(), pending.held.end(), [&](const ReadyRecord& held) {
    return held.origin == record.origin ||
           (record.subtree && is_below(record.origin, held.origin)) ||
           (held.subtree && is_below(held.origin, record.origin));
  });
}

}  // namespace rdmacoll
