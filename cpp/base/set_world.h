// The ranks of one process set, as one of them sees it.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/rank.h"
#include "base/world.h"

namespace rdmacoll {

// The ranks with data. A server's rank is beyond them.
class SetWorld {
 public:
  // `members`: the ranks of the set. `members.rank` is this rank's place among them.
  explicit SetWorld(World members) : members_(std::move(members)) {}

  SetRank rank() const { return SetRank(members_.rank); }
  int size() const { return members_.size(); }
  std::vector<SetRank> ranks() const;  // all, ascending
  bool is_root() const { return members_.rank == 0; }
  bool is_server() const { return members_.rank >= size(); }
  bool is_one_node() const { return members_.local_size() == size(); }
  std::vector<int> nodes() const { return members_.nodes(); }  // by rank
  std::vector<int> numa_nodes() const { return members_.numa_nodes(); }
  const std::string& part() const { return members_.part; }  // as in World

  // The rank's number in sentences and errors.
  JobRank number(SetRank rank) const { return members_.number(rank.value()); }
  std::string describe(SetRank rank) const { return members_.describe(rank.value()); }

 private:
  World members_;
};

// The job's ranks of a set's members, and of its servers behind them.
class SetMembers {
 public:
  SetMembers() = default;
  explicit SetMembers(std::vector<JobRank> ranks) : ranks_(std::move(ranks)) {}

  JobRank operator[](SetRank rank) const { return ranks_[rank.index()]; }
  // None if the set does not contain the process.
  SetRank find(JobRank rank) const {
    const std::size_t at = rank.index();  // its place in the world
    if (at < ranks_.size() && ranks_[at] == rank) return SetRank(rank.value());
    const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
    return found == ranks_.end() ? SetRank() : SetRank(static_cast<int>(found - ranks_.begin()));
  }
  int size() const { return static_cast<int>(ranks_.size()); }
  auto begin() const { return ranks_.begin(); }
  auto end() const { return ranks_.end(); }

 private:
  std::vector<JobRank> ranks_;
};

// The control tree (base/world.h) over the ranks of a set.
inline constexpr SetRank kTreeRoot{0};
SetRank tree_parent(SetRank rank);  // none at the root
std::vector<SetRank> tree_children(SetRank rank, int size);
std::vector<SetRank> tree_subtree(SetRank rank, int size);  // rank and all below it, ascending

}  // namespace rdmacoll
