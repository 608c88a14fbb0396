#include "collectives/outcome.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

}  // namespace

int Outcome::content(int rank, int part) const {
  if (result_ != Result::exchange) return part;
  if (part >= 2 * ranks_) return kAnything;
  return part < ranks_ ? rank * ranks_ + part : (part - ranks_) * ranks_ + rank;
}

bool Outcome::begins_with(int rank, int part) const {
  if (rank >= ranks_) return false;
  switch (result_) {
    case Result::sum:
    case Result::own_sum:
    case Result::root_sum:
      return true;
    case Result::root_value:
    case Result::own_value:
      return rank == root_;
    case Result::concatenation:
    case Result::root_concatenation:
      return part == rank;
    case Result::exchange:
      return part < ranks_;
  }
  return false;
}

bool Outcome::ends_with(int rank, int part) const {
  if (rank >= ranks_) return false;
  switch (result_) {
    case Result::sum:
    case Result::root_value:
    case Result::concatenation:
      return true;
    case Result::own_sum:
    case Result::own_value:
      return part == rank;
    case Result::root_sum:
    case Result::root_concatenation:
      return rank == root_;
    case Result::exchange:
      return part >= ranks_ && part < 2 * ranks_;
  }
  return false;
}

std::vector<uint8_t> Outcome::contributions(int part) const {
  if (is_sum(result_)) return std::vector<uint8_t>(ranks_, 1);
  int giver = part;
  if (result_ == Result::root_value || result_ == Result::own_value) giver = root_;
  if (result_ == Result::exchange) giver = part - ranks_;
  std::vector<uint8_t> expected(ranks_, 0);
  expected[giver] = 1;
  return expected;
}

}  // namespace rdmacoll
