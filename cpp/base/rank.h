// Ranks of different kinds are different types, so a rank of one kind is not taken for one of
// another. A rank becomes a number, or a number a rank, only in sight.
#pragma once

#include <compare>
#include <cstddef>
#include <ostream>

namespace rdmacoll {

template <typename Kind>
class Rank {
 public:
  constexpr Rank() = default;  // no rank: value() is -1
  constexpr explicit Rank(int value) : value_(value) {}

  constexpr int value() const { return value_; }
  constexpr bool is_none() const { return value_ < 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }

  friend constexpr auto operator<=>(Rank, Rank) = default;
  friend std::ostream& operator<<(std::ostream& stream, Rank rank) { return stream << rank.value_; }

 private:
  int value_ = -1;
};

using JobRank = Rank<struct OfJob>;  // a process of the job; servers are behind the workers
using SetRank = Rank<struct OfSet>;  // a member of one process set; the set's servers are behind

// A worker of asynchronous parameter servers. Its rank in the world of the servers may be another.
using WorkerRank = Rank<struct OfWorkers>;

}  // namespace rdmacoll
