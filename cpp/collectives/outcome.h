// What each result of an algorithm means, part by part: what a rank begins with, and must end with.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/algorithms.h"

namespace rdmacoll {

class Outcome {
 public:
  // `ranks`: that have data. Others begin and end with none.
  Outcome(AlgorithmRow::Result result, int ranks, int root)
      : result_(result), ranks_(ranks), root_(root) {}

  AlgorithmRow::Result result() const { return result_; }
  // What belongs in this part, as a number: the part's own, but in an exchange, where each pair of
  // ranks has another, which the two call by different parts. Beyond those anything may pass.
  static constexpr int kAnything = -2;
  int content(int rank, int part) const;
  bool begins_with(int rank, int part) const;  // the rank's own contribution is there
  bool ends_with(int rank, int part) const;
  // How often each rank's contribution must be in it then.
  std::vector<uint8_t> contributions(int part) const;

 private:
  AlgorithmRow::Result result_;
  int ranks_;
  int root_;
};

}  // namespace rdmacoll
