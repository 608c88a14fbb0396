// Which process sets the job has beside the world, and what each may use: lanes and memory. All
// ranks, members or not, make the same changes in the same order, and so come to the same.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/status.h"
#include "execution/executor.h"

namespace rdmacoll {

// The world has the first lanes.
inline constexpr int kSetsMax = (kLanesMax - kBatchesInFlight) / kBatchesInFlightOfSet;

class SetTable {
 public:
  struct Entry {
    std::vector<int> ranks;
    Lanes lanes;
    uint64_t bytes = 0;  // of segments in flight
  };

  // `bytes`: for all sets that a rank is in, together.
  SetTable(int ranks, uint64_t bytes) : ranks_(ranks), bytes_(bytes) {}

  // `ranks`: of the job, ascending. Numbers are never given twice: what is still said of a set that
  // was removed is not about another.
  Status add(const std::vector<int>& ranks, uint32_t& number);
  void remove(uint32_t number) { entries_.erase(number); }
  // Null: it was never added, or has been removed.
  const Entry* find(uint32_t number) const;
  bool was_added(uint32_t number) const { return number < next_; }

 private:
  Status check(const std::vector<int>& ranks) const;
  std::size_t free_lane() const;
  uint64_t left(int rank) const;

  const int ranks_;
  const uint64_t bytes_;
  std::map<uint32_t, Entry> entries_;
  uint32_t next_ = 1;
};

}  // namespace rdmacoll
