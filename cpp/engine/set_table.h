// The process sets of the job other than the world, and the lanes and memory of each. All ranks,
// members or not, make the same changes in the same order, and so have equal tables.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/rank.h"
#include "base/status.h"
#include "execution/executor.h"

namespace rdmacoll {

// The first lanes belong to the world.
inline constexpr int kSetsMax = (kLanesMax - kBatchesInFlight) / kBatchesInFlightOfSet;

class SetTable {
 public:
  struct Entry {
    std::vector<JobRank> ranks;
    Lanes lanes;
    uint64_t bytes = 0;  // for its segments in flight
  };

  // `bytes`: the total for all sets that contain one rank.
  SetTable(int ranks, uint64_t bytes) : ranks_(ranks), bytes_(bytes) {}

  // `ranks`: ascending. Numbers are never reused, so late messages of a removed
  // set do not reach another set.
  Status add(const std::vector<JobRank>& ranks, uint32_t& number);
  void remove(uint32_t number) { entries_.erase(number); }
  // Returns null if the set was never added, or was removed.
  const Entry* find(uint32_t number) const;
  bool was_added(uint32_t number) const { return number < next_; }

 private:
  Status check(const std::vector<JobRank>& ranks) const;
  std::size_t free_lane() const;
  uint64_t left(JobRank rank) const;

  const int ranks_;
  const uint64_t bytes_;
  std::map<uint32_t, Entry> entries_;
  uint32_t next_ = 1;
};

}  // namespace rdmacoll
