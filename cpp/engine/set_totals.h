// The counts of a process set since its start.
#pragma once

#include <cstdint>

namespace rdmacoll {

struct SetTotals {
  uint64_t plans = 0;       // plans that this rank has followed
  uint64_t plans_left = 0;  // plans that this rank has left
  uint64_t caught_up = 0;   // decisions of ended plans that some ranks had to catch up with
  uint64_t replayed = 0;    // decisions among these whose operations were decided again
  uint64_t programs = 0;    // programs that were built
  uint64_t shared = 0;      // sums with results that the ranks of the node share
  uint64_t in_place = 0;    // batches for which peers could read the callers' memory

  SetTotals& operator+=(const SetTotals& other) {
    plans += other.plans;
    plans_left += other.plans_left;
    caught_up += other.caught_up;
    replayed += other.replayed;
    programs += other.programs;
    shared += other.shared;
    in_place += other.in_place;
    return *this;
  }
};

}  // namespace rdmacoll
