// Defines each result of an algorithm part by part: what a rank begins with and must end with.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/algorithms.h"

namespace rdmacoll {

class Outcome {
 public:
  // `ranks`: the ranks that have data. Other members begin and end with none.
  Outcome(AlgorithmRow::Result result, int ranks, int root)
      : result_(result), ranks_(ranks), root_(root) {}

  int ranks() const { return ranks_; }

  AlgorithmRow::Result result() const { return result_; }
  // The number of the data that belongs in this part, usually the part's own number. In an exchange
  // each pair of ranks has its own number, since the two use different parts for it. Further parts
  // may hold anything.
  static constexpr int kAnything = -2;
  int content(int rank, int part) const;
  bool begins_with(int rank, int part) const;  // the part holds the rank's own contribution
  bool ends_with(int rank, int part) const;
  // How often each rank's contribution must be in the part at the end.
  std::vector<uint8_t> contributions(int part) const;

 private:
  AlgorithmRow::Result result_;
  int ranks_;
  int root_;
};

}  // namespace rdmacoll
