// Limits how far workers may run ahead of each other. Ho et al., "More effective distributed ML via
// a stale synchronous parallel parameter server", 2013.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/rank.h"

namespace rdmacoll::ps {

class Pace {
 public:
  // `staleness`: the number of updates that the fastest worker may be ahead of the slowest. None:
  // unlimited.
  Pace(std::size_t workers, std::optional<uint64_t> staleness)
      : updates_(workers, 0), runs_(workers, true), staleness_(staleness) {}

  void note(WorkerRank worker, uint64_t updates) {
    uint64_t& known = updates_[worker.index()];
    known = std::max(known, updates);
  }
  void end(WorkerRank worker) { runs_[worker.index()] = false; }

  // Whether a worker with this number of updates may continue.
  bool may_go(uint64_t updates) const { return !staleness_ || updates <= slowest() + *staleness_; }

 private:
  uint64_t slowest() const {
    uint64_t least = UINT64_MAX / 2;
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      if (runs_[i]) least = std::min(least, updates_[i]);
    }
    return least;
  }

  std::vector<uint64_t> updates_;
  std::vector<bool> runs_;
  std::optional<uint64_t> staleness_;
};

}  // namespace rdmacoll::ps
